// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>

#include <cstdlib>
#include <string>

#include "bindings/registers.hpp"

namespace gs::raster {

namespace {

/// Whether GS_CHECK_INDEX asks for a look at indices. os.environ writes to the process's
/// environment; to read it from Python takes ten times as long.
bool looks_at_indices() {
  const char* const asked = std::getenv("GS_CHECK_INDEX");
  if (asked == nullptr) return false;
  const std::string value(asked);
  return !value.empty() && value != "0";
}

}  // namespace

void register_indices(pybind11::module_& module) {
  module.def("looks_at_indices", &looks_at_indices);
}

}  // namespace gs::raster
