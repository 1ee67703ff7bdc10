// SPDX-License-Identifier: Apache-2.0
// What module.cpp puts together.
#pragma once

#include <pybind11/pybind11.h>

namespace gs::cull {

void register_options(pybind11::module_& module);
void register_cpu(pybind11::module_& module);
void register_cuda(pybind11::module_& module);
void register_mark(pybind11::module_& module);

}  // namespace gs::cull
