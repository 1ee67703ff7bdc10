# SPDX-License-Identifier: Apache-2.0
# The one file that a package includes. It finds Python and pybind11, sets the defaults that every native module of
# this project is built with, and brings in gs_add_module() and gs_enable_cuda().
#
# It lies in <shared>/cmake, where <shared> is the repository in a checkout and _shared in an unpacked sdist; the C++
# headers lie in <shared>/cpp/include.
get_filename_component(GS_SHARED_DIR "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
# pybind11 would add -flto, which may merge functions compiled for different instruction sets.
set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)

if(NOT TARGET gs::headers)
  add_library(gs_headers INTERFACE)
  target_include_directories(gs_headers INTERFACE "${GS_SHARED_DIR}/cpp/include")
  add_library(gs::headers ALIAS gs_headers)
endif()

include("${CMAKE_CURRENT_LIST_DIR}/GsWarnings.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/GsHardening.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/GsSimd.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/GsCuda.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/GsModule.cmake")
