// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>

#include "bindings/arguments.hpp"
#include "gs/python/build_info.hpp"
#include "gs/python/exceptions.hpp"

PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  gs::python::register_exceptions(module);
  gs::python::register_build_info(module);
  gs::adam::register_calls(module);
  gs::adam::register_schedule(module);
  gs::adam::register_rows(module);
  gs::adam::register_worker(module);
  gs::adam::register_device(module);
  gs::adam::register_device_slots(module);
  gs::adam::register_device_lookahead(module);
  gs::adam::register_memory(module);
}
