# SPDX-License-Identifier: Apache-2.0
# gs_set_hardening(<target>): what stops a defect of memory before it does more harm, at a cost below the spread of
# measurements. A damaged stack, and a copy that its buffer is known not to hold, end the process; nothing can write to the tables of
# functions of other libraries, which are looked up when the module is loaded.
#
# With GS_SANITIZE (address, undefined, thread, or several with commas) the target is built for gcc's or clang's
# sanitizers instead, which find the same defects where they happen, at many times the cost.
include(CheckCXXCompilerFlag)
set(GS_SANITIZE "" CACHE STRING "Sanitizers for gcc or clang: address, undefined, thread or address,undefined")

function(gs_set_hardening target)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" OR APPLE)
    return()
  endif()
  if(GS_SANITIZE)
    # What happens after undefined behaviour says nothing, so it ends the process too. At -O3 the checks of one file of
    # bindings take minutes to compile.
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${GS_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer;-O1;-g1>")
    target_link_options(${target} PRIVATE -fsanitize=${GS_SANITIZE})
    return()
  endif()
  check_cxx_compiler_flag(-fstack-clash-protection GS_HAS_STACK_CLASH_PROTECTION)
  set(flags -fstack-protector-strong)
  if(GS_HAS_STACK_CLASH_PROTECTION)
    list(APPEND flags -fstack-clash-protection)
  endif()
  list(JOIN flags "," host_flags)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${flags}>"
    # Checked copies need the optimizer, which finds the sizes. Some compilers define the macro themselves.
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${host_flags}>")
  target_link_options(${target} PRIVATE "LINKER:-z,relro,-z,now")
endfunction()
