// SPDX-License-Identifier: Apache-2.0
// Native work without the interpreter's lock, safe when the interpreter ends meanwhile.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace gs::python {

/// Gives the interpreter's lock up for a scope.
///
/// Up to Python 3.13 a thread that asks for the lock while the interpreter shuts down is ended by
/// unwinding its stack, which ends the process where a C++ frame may not be unwound. Such a thread
/// sleeps here instead, until the process is gone.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;
  ~ReleaseGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }

 private:
  PyThreadState* const state_;
};

}  // namespace gs::python
