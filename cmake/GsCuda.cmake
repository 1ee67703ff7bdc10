# SPDX-License-Identifier: Apache-2.0
# gs_enable_cuda(): makes GS_HAS_CUDA true when CUDA sources are to be compiled. A macro, because enable_language must
# run in the package's own top scope.
#
# GS_CUDA=AUTO (default) builds CUDA sources when a working nvcc is found, ON insists, OFF never looks.
# Architectures: -DCMAKE_CUDA_ARCHITECTURES or $CUDAARCHS. The default covers every GPU since Turing: sm_80 code runs on
# 8.6 and 8.9 too, the driver compiles the sm_75 and sm_90 intermediate code for the others.
set(GS_CUDA "AUTO" CACHE STRING "Build the CUDA sources: AUTO, ON or OFF")
set_property(CACHE GS_CUDA PROPERTY STRINGS AUTO ON OFF)

macro(gs_enable_cuda)
  set(GS_HAS_CUDA FALSE)
  if(NOT GS_CUDA STREQUAL "OFF")
    if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
      find_program(GS_NVCC nvcc HINTS "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" PATHS /usr/local/cuda PATH_SUFFIXES bin)
      if(GS_NVCC)
        # Not CMAKE_CUDA_COMPILER: check_language() tries only what that variable does not name yet.
        set(ENV{CUDACXX} "${GS_NVCC}")
      endif()
    endif()
    set(GS_TRIED "$ENV{CUDACXX}")
    if(NOT GS_TRIED)
      set(GS_TRIED "none found")
    endif()
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
      set(CMAKE_CUDA_ARCHITECTURES "75-virtual;80-real;90-real;90-virtual")
    endif()
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
      set(CMAKE_CUDA_STANDARD 17)
      set(CMAKE_CUDA_STANDARD_REQUIRED ON)
      set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
      find_package(CUDAToolkit REQUIRED)
      set(GS_HAS_CUDA TRUE)
    elseif(GS_CUDA STREQUAL "ON")
      message(FATAL_ERROR
        "GS_CUDA=ON, but no working CUDA compiler was found (tried: ${GS_TRIED}). Install the CUDA toolkit (nvcc), point "
        "CUDACXX or CUDA_HOME at it, or build without CUDA: -DGS_CUDA=OFF.")
    else()
      message(STATUS "No working CUDA compiler (tried: ${GS_TRIED}): building for the CPU only (GS_CUDA=AUTO)")
    endif()
  endif()
endmacro()
