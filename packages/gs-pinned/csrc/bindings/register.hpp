// SPDX-License-Identifier: Apache-2.0
// What each file of this folder adds to the module, and what they share.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "gs/python/gil.hpp"

namespace gs::pinned {

void register_memory(pybind11::module_& module);
void register_transfer(pybind11::module_& module);
void register_exchange(pybind11::module_& module);
void register_signal(pybind11::module_& module);
void register_ring(pybind11::module_& module);
void register_store(pybind11::module_& module);

/// A shared pointer that deletes without the GIL: the destructor may wait for a stream that waits
/// for another Python thread.
template <class T>
std::shared_ptr<T> share(T* object) {
  return std::shared_ptr<T>(object, [](T* last) {
    if (PyGILState_Check() != 0) {
      python::ReleaseGil release;
      delete last;
    } else {
      delete last;
    }
  });
}

}  // namespace gs::pinned
