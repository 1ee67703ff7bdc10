// SPDX-License-Identifier: Apache-2.0
// The threads that every host-side operation of this module runs on.
#pragma once

#include "gs/thread_pool.hpp"

namespace gs::pinned {

/// One pool for the module; its threads start with the first large operation.
inline ThreadPool& pool() {
  // Never destroyed: a transfer may still run while the interpreter shuts down.
  static ThreadPool* const threads = new ThreadPool();
  return *threads;
}

}  // namespace gs::pinned
