// SPDX-License-Identifier: Apache-2.0
// The interpreter's lock around native work, safe when the interpreter ends meanwhile.
//
// Up to Python 3.13 a thread that asks for the lock while the interpreter shuts down is ended by
// pthread_exit, which unwinds the thread's stack as an exception does that nobody may swallow.
// (From 3.14 on the thread hangs.) Such unwinding ends the process, "terminate called", at the
// first frame that is noexcept, as every destructor is; and the destructors that it runs would
// touch Python objects without the lock. Hence all that may ask for the lock runs within outlast(),
// as the innermost C++ frame: the thread sleeps there, and no frame of ours is ever unwound.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace gs::python {

/// Returns call(), which calls functions of Python's C interface and nothing that throws. Where the
/// interpreter ends this thread meanwhile, the thread sleeps here until the process is gone.
template <class Call>
auto outlast(Call&& call) noexcept -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    for (;;) pause();
  }
}

/// Gives the interpreter's lock up for a scope.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;
  ~ReleaseGil() {
    outlast([this] { PyEval_RestoreThread(state_); });
  }

 private:
  PyThreadState* const state_;
};

/// Takes the interpreter's lock for a scope, on any thread, which may hold it already.
class AcquireGil {
 public:
  AcquireGil() : state_(outlast([] { return PyGILState_Ensure(); })) {}
  AcquireGil(const AcquireGil&) = delete;
  AcquireGil& operator=(const AcquireGil&) = delete;
  ~AcquireGil() {
    outlast([this] { PyGILState_Release(state_); });
  }

 private:
  const PyGILState_STATE state_;
};

}  // namespace gs::python
