# SPDX-License-Identifier: Apache-2.0
# gs_set_warnings(<target>): the project's warnings for C++ (nvcc passes none of them on). GS_WERROR=ON makes them errors.
option(GS_WERROR "Treat compiler warnings as errors" OFF)

function(gs_set_warnings target)
  if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Wno-unknown-pragmas>"
      "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${GS_WERROR}>>:-Werror>")
  endif()
endfunction()
