// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>

#include "bindings/arguments.hpp"
#include "bindings/registers.hpp"
#include "gs/python/build_info.hpp"
#include "gs/python/exceptions.hpp"

PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  gs::python::register_exceptions(module);
  gs::python::register_build_info(module);
  gs::cull::register_options(module);
  gs::cull::register_cpu(module);
  gs::cull::register_cuda(module);
  gs::cull::register_mark(module);
}
