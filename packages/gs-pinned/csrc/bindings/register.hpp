// SPDX-License-Identifier: Apache-2.0
// What each file of this folder adds to the module, and what they share.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "memory.hpp"

namespace gs::pinned {

void register_memory(pybind11::module_& module);

/// A shared pointer that deletes without the GIL.
std::shared_ptr<Memory> share_memory(Memory* memory);

}  // namespace gs::pinned
