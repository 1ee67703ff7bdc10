# SPDX-License-Identifier: Apache-2.0
# gs_set_simd_sources(<target> AVX2 <files> AVX512 <files>): gives each file its own instruction set, the rest stays
# baseline. Such files include only PODs, declarations and <immintrin.h>: an inline function from a shared header
# would be emitted for AVX-512 and could then replace the baseline copy at link time.
# On other processors the files are left out and the target is compiled without GS_WITH_AVX2 / GS_WITH_AVX512.
function(gs_set_simd_sources target)
  cmake_parse_arguments(arg "" "" "AVX2;AVX512" ${ARGN})
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" OR NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    return()
  endif()
  if(arg_AVX2)
    target_sources(${target} PRIVATE ${arg_AVX2})
    set_source_files_properties(${arg_AVX2} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mbmi2")
    target_compile_definitions(${target} PRIVATE GS_WITH_AVX2=1)
  endif()
  if(arg_AVX512)
    target_sources(${target} PRIVATE ${arg_AVX512})
    set_source_files_properties(${arg_AVX512} PROPERTIES
      COMPILE_OPTIONS "-mavx2;-mfma;-mbmi2;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mprefer-vector-width=512")
    target_compile_definitions(${target} PRIVATE GS_WITH_AVX512=1)
  endif()
endfunction()
