// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>

#include "bindings/registers.hpp"
#include "gs/python/build_info.hpp"
#include "gs/python/exceptions.hpp"

PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  gs::python::register_exceptions(module);
  gs::python::register_build_info(module);
  gs::raster::register_indices(module);
  gs::raster::register_cuda(module);
  gs::raster::register_draw(module);
  gs::raster::register_views(module);
}
