// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>

#include "bindings/register.hpp"
#include "gs/python/build_info.hpp"
#include "gs/python/exceptions.hpp"

PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  gs::python::register_exceptions(module);
  gs::python::register_build_info(module);
  gs::pinned::register_memory(module);
  gs::pinned::register_transfer(module);
  gs::pinned::register_exchange(module);
  gs::pinned::register_signal(module);
  gs::pinned::register_ring(module);
  gs::pinned::register_store(module);
}
