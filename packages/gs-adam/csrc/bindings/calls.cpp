// SPDX-License-Identifier: Apache-2.0
// Which threads are inside calls on an optimizer's rows, and who waits for them.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/arguments.hpp"
#include "gs/python/gil.hpp"

namespace gs::adam {
namespace {

constexpr std::chrono::milliseconds kLookUp{100};

struct Inside {
  std::mutex mutex;
  std::condition_variable has_ended;
  std::vector<std::thread::id> threads;  // one entry a call
  int n_waiting = 0;

  bool holds(std::thread::id thread) const {
    return std::find(threads.begin(), threads.end(), thread) != threads.end();
  }
};

/// One call: counted from its construction until it is left or destroyed, whichever comes first.
/// An exception at any moment, Ctrl-C included, therefore ends the call.
class Call {
 public:
  Call(std::shared_ptr<Inside> inside, py::object value)
      : inside_(std::move(inside)), value_(std::move(value)), thread_(std::this_thread::get_id()) {
    const std::lock_guard<std::mutex> lock(inside_->mutex);
    inside_->threads.push_back(*thread_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() { leave(); }

  py::object value() const { return value_; }

  void leave() {
    if (!thread_) return;
    const std::lock_guard<std::mutex> lock(inside_->mutex);
    auto& threads = inside_->threads;
    threads.erase(std::find(threads.begin(), threads.end(), *thread_));
    thread_.reset();
    if (threads.empty()) inside_->has_ended.notify_all();
  }

 private:
  std::shared_ptr<Inside> inside_;
  py::object value_;
  std::optional<std::thread::id> thread_;
};

class Calls {
 public:
  std::unique_ptr<Call> call(py::object value) {
    return std::make_unique<Call>(inside_, std::move(value));
  }

  std::size_t count() const {
    const std::lock_guard<std::mutex> lock(inside_->mutex);
    return inside_->threads.size();
  }

  int n_waiting() const {
    const std::lock_guard<std::mutex> lock(inside_->mutex);
    return inside_->n_waiting;
  }

  /// Returns true when there is no call, and false at once where this thread is inside one, which
  /// would wait for itself. Whoever waits keeps further calls away.
  bool wait() {
    std::unique_lock<std::mutex> lock(inside_->mutex);
    if (inside_->holds(std::this_thread::get_id())) return false;
    while (!inside_->threads.empty()) {
      {
        const python::ReleaseGil nogil;
        ++inside_->n_waiting;
        inside_->has_ended.wait_for(lock, kLookUp, [&] { return inside_->threads.empty(); });
        --inside_->n_waiting;
        lock.unlock();  // a thread that has the interpreter's lock may want this one
      }
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      lock.lock();
    }
    return true;
  }

 private:
  std::shared_ptr<Inside> inside_ = std::make_shared<Inside>();
};

}  // namespace

void register_calls(py::module_& module) {
  py::class_<Call>(module, "Call", py::module_local())
      .def("__enter__", &Call::value)
      .def(
          "__exit__",
          [](Call& self, const py::object&, const py::object&, const py::object&) { self.leave(); },
          py::arg("kind"), py::arg("error"), py::arg("traceback"));
  py::class_<Calls>(module, "Calls", py::module_local())
      .def(py::init<>())
      .def("call", &Calls::call, py::arg("value"))
      .def("wait", &Calls::wait)
      .def_property_readonly("count", &Calls::count)
      .def_property_readonly("n_waiting", &Calls::n_waiting);
}

}  // namespace gs::adam
