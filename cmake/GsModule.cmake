# SPDX-License-Identifier: Apache-2.0
# gs_add_module(<package> <name> SOURCES ... [AVX2_SOURCES ...] [AVX512_SOURCES ...] [CUDA_SOURCES ...]):
# the extension module <package>.<name>. CUDA_SOURCES are compiled only after gs_enable_cuda() found a compiler; the rest
# of the module then sees GS_WITH_CUDA=1. The CUDA runtime is linked statically and libcuda is opened on first use, so
# the module imports on machines without a driver.
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
find_package(pybind11 CONFIG REQUIRED)
find_package(Threads REQUIRED)

function(gs_add_module package name)
  cmake_parse_arguments(arg "" "" "SOURCES;AVX2_SOURCES;AVX512_SOURCES;CUDA_SOURCES" ${ARGN})
  pybind11_add_module(${name} MODULE NO_EXTRAS ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/csrc")
  target_link_libraries(${name} PRIVATE gs::headers Threads::Threads)
  target_compile_definitions(${name} PRIVATE GS_VERSION="${PROJECT_VERSION}")
  gs_set_warnings(${name})
  gs_set_hardening(${name})
  gs_set_simd_sources(${name} AVX2 ${arg_AVX2_SOURCES} AVX512 ${arg_AVX512_SOURCES})
  if(GS_HAS_CUDA)
    string(REPLACE ";" "," architectures "${CMAKE_CUDA_ARCHITECTURES}")
    target_sources(${name} PRIVATE ${arg_CUDA_SOURCES})
    target_compile_definitions(${name} PRIVATE GS_WITH_CUDA=1 GS_CUDA_ARCHITECTURES="${architectures}")
    set_target_properties(${name} PROPERTIES CUDA_RUNTIME_LIBRARY Static)
    target_link_libraries(${name} PRIVATE CUDA::cudart_static)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT APPLE)
    # Nothing of the static CUDA runtime may be visible to other modules of the process, torch's own runtime above all.
    target_link_options(${name} PRIVATE "LINKER:--exclude-libs,ALL")
  endif()
  install(TARGETS ${name} LIBRARY DESTINATION ${package} COMPONENT python)
endfunction()
