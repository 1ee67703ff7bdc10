// SPDX-License-Identifier: Apache-2.0
#include "worker.hpp"

#include <pybind11/pybind11.h>

#include <atomic>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings/arguments.hpp"
#include "bindings/bound_rows.hpp"

namespace gs::adam {
namespace {

/// How long the end of a worker that nobody has closed waits for a task that runs.
constexpr double kLastSeconds = 2.0;

bool is_interpreter_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

/// A reference to the object, given back on whatever thread.
std::shared_ptr<PyObject> kept(py::object object) {
  return std::shared_ptr<PyObject>(object.release().ptr(), [](PyObject* pointer) {
    if (is_interpreter_ending()) return;  // the process ends, and so does what it held
    const python::AcquireGil gil;
    python::outlast([pointer] { Py_DECREF(pointer); });
  });
}

/// An exception that Python code raised on the worker's thread; Python gets the same object back,
/// traceback included, as often as it asks.
struct RaisedInPython : std::exception {
  explicit RaisedInPython(const py::object& raised) : error(kept(raised)) {}
  const char* what() const noexcept override { return "raised in Python"; }
  std::shared_ptr<PyObject> error;
};

/// What a uint32 holds after whoever should have set it has failed, as a poisoned gs_pinned.Signal.
constexpr std::uint32_t kFailed = 0x7fffffffu;

/// Whether callable() returns None or something true; -1 where it has raised.
int is_ready(PyObject* callable) {
  PyObject* const found = PyObject_CallNoArgs(callable);
  if (found == nullptr) return -1;
  const int ready = found == Py_None ? 1 : PyObject_IsTrue(found);
  Py_DECREF(found);
  return ready;
}

/// None: at once. (address, value): when the uint32 there is at least the value. A callable: when
/// it returns None or something true.
std::function<bool()> readiness(const py::object& ready) {
  if (ready.is_none()) return {};
  if (PyCallable_Check(ready.ptr()) != 0) {
    const py::handle callable = ready;  // kept alive with the task
    return [callable] {
      const python::AcquireGil gil;
      const int answer = python::outlast([&] { return is_ready(callable.ptr()); });
      if (answer >= 0) return answer != 0;
      const py::error_already_set error;
      const py::object raised = error.value();
      if (error.trace()) PyException_SetTraceback(raised.ptr(), error.trace().ptr());
      throw RaisedInPython(raised);
    };
  }
  GS_CHECK_AS(KindError, py::isinstance<py::tuple>(ready) && py::len(ready) == 2,
              "ready must be None, (address, value) or a callable, got ",
              py::str(py::type::of(ready).attr("__name__")).cast<std::string>());
  const auto pair = ready.cast<py::tuple>();
  GS_CHECK_AS(KindError, py::isinstance<py::int_>(pair[0]) && py::isinstance<py::int_>(pair[1]),
              "ready must hold two whole numbers, got ", py::repr(ready).cast<std::string>());
  const auto fits = [](const py::handle& number, const char* most) {
    return number >= py::int_(0) && number <= py::int_(py::str(most));
  };
  GS_CHECK(fits(pair[0], "18446744073709551615") && fits(pair[1], "4294967295"),
           "ready must hold an address and a uint32, got ", py::repr(ready).cast<std::string>());
  const auto address = pair[0].cast<std::uintptr_t>();
  const auto value = pair[1].cast<std::uint32_t>();
  GS_CHECK(address != 0 && address % alignof(std::uint32_t) == 0,
           "ready must hold the address of a uint32, got ", address);
  return [address, value] {
    const auto found =
        __atomic_load_n(reinterpret_cast<const std::uint32_t*>(address), __ATOMIC_ACQUIRE);
    if (found == kFailed && value < kFailed)
      throw std::runtime_error("ready will never come to " + std::to_string(value) + ": it holds " +
                               std::to_string(found) + ", as where what it stands for has failed");
    return found >= value;
  };
}

/// Turns what a worker throws into what Python raises.
template <class Body>
auto guarded(Body&& body) {
  try {
    return body();
  } catch (const RaisedInPython& failure) {
    PyObject* const error = failure.error.get();
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
    throw py::error_already_set();
  } catch (const ClosedError& closed) {
    PyErr_SetString(PyExc_RuntimeError, closed.what());
    throw py::error_already_set();
  }
}

/// Lets Ctrl-C end a thread's waiting.
void look_for_signals() {
  const python::AcquireGil gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

class BoundWorker {
 public:
  BoundWorker() : worker_(look_for_signals) {}
  // Collected at any moment, on any thread: it must neither throw nor wait for what may not come.
  ~BoundWorker() {
    const python::ReleaseGil nogil;
    worker_.abandon(kLastSeconds);
  }

  std::uint64_t submit(const Call& call, std::int64_t step, bool is_update, const py::object& ready,
                       int priority, py::object keep, bool is_checked, bool is_apart = false) {
    if (!is_checked) call.check();
    Task task;
    task.is_apart = is_apart;
    task.step = step;
    task.priority = priority;
    task.is_update = is_update;
    task.rows = call.rows;
    task.is_ready = readiness(ready);
    task.work = call.run;
    task.keep = kept(py::make_tuple(std::move(keep), ready));
    worker_.take_finished();
    return guarded([&] { return worker_.submit(std::move(task)); });
  }

  void wait(std::uint64_t ticket) {
    waiting([&] { worker_.wait(ticket); });
  }
  void wait_all() {
    waiting([&] { worker_.wait_all(); });
  }
  void wait_step(std::int64_t step) {
    waiting([&] { worker_.wait_step(step); });
  }
  void wait_rows(const py::object& rows, std::int64_t n_rows) {
    const Ids ids = ids_from(rows, "rows", n_rows);
    waiting([&] {
      check_ids(ids, n_rows, "rows");
      worker_.wait_rows(ids);
    });
  }
  void close(bool drain) {
    waiting([&] { worker_.close(drain); });
  }
  void abandon() {
    waiting([&] { worker_.abandon(kLastSeconds); });
  }
  void check_untold() {
    guarded([&] { worker_.check_untold(); });
  }
  void check() {
    guarded([&] { worker_.check(); });
  }
  void record(bool enabled) { worker_.record(enabled); }
  py::list take_spans() {
    py::list spans;
    for (const Span& span : worker_.take_spans())
      spans.append(py::make_tuple(span.step, span.is_update, span.rows, span.start_s, span.end_s));
    return spans;
  }
  bool is_idle() {
    const bool is_idle = worker_.is_idle();
    if (is_idle) worker_.take_finished();  // tables that nobody updates any more may be large
    return is_idle;
  }
  bool is_closed() const { return worker_.is_closed(); }

 private:
  template <class Body>
  void waiting(Body&& body) {
    guarded([&] {
      const python::ReleaseGil nogil;
      body();
    });
    worker_.take_finished();
  }

  Worker worker_;
};

}  // namespace

void register_worker(py::module_& module) {
  using Plan = std::shared_ptr<StepPlan>;
  // Of each task `held` is the memory that `rows` point to, for as long as the task may run.
  py::class_<BoundWorker>(module, "Worker", py::module_local())
      .def(py::init<>())
      .def(
          "submit_update",
          [](BoundWorker& self, const BoundRows& rows, const Plan& plan, const py::object& ids,
             const py::object& grads, std::int32_t floor, const py::object& ready, int priority,
             bool checked, const py::object& held) {
            return self.submit(rows.update(plan, ids, grads, floor), plan->step(), true, ready,
                               priority, py::make_tuple(held, ids, grads), checked);
          },
          py::arg("rows"), py::arg("plan"), py::arg("ids"), py::arg("grads"), py::arg("floor"),
          py::arg("ready"), py::arg("priority"), py::arg("checked"), py::arg("held"))
      .def(
          "submit_flush",
          [](BoundWorker& self, const BoundRows& rows, const Plan& plan, const py::object& ids,
             const py::object& ready, int priority, const py::object& held) {
            return self.submit(rows.flush(plan, ids), plan->step(), false, ready, priority,
                               py::make_tuple(held, ids), false);
          },
          py::arg("rows"), py::arg("plan"), py::arg("ids"), py::arg("ready"), py::arg("priority"),
          py::arg("held"))
      .def(
          "submit_lookahead",
          [](BoundWorker& self, const BoundRows& rows, const Plan& plan, bool steps,
             const py::object& ids, const py::object& pending, const py::object& grads,
             const py::object& out, std::int32_t floor, const py::object& ready, int priority,
             bool checked, bool apart, const py::object& held) {
            return self.submit(rows.lookahead(plan, steps, ids, pending, grads, out, floor),
                               plan->step(), false, ready, priority,
                               py::make_tuple(held, ids, pending, grads, out), checked, apart);
          },
          py::arg("rows"), py::arg("plan"), py::arg("steps"), py::arg("ids"), py::arg("pending"),
          py::arg("grads"), py::arg("out"), py::arg("floor"), py::arg("ready"), py::arg("priority"),
          py::arg("checked"), py::arg("apart"), py::arg("held"))
      .def("wait", &BoundWorker::wait, py::arg("ticket"))
      .def("wait_all", &BoundWorker::wait_all)
      .def("wait_step", &BoundWorker::wait_step, py::arg("step"))
      .def("wait_rows", &BoundWorker::wait_rows, py::arg("rows"), py::arg("n_rows"))
      .def("close", &BoundWorker::close, py::arg("drain"))
      .def("abandon", &BoundWorker::abandon)
      .def("check", &BoundWorker::check)
      .def("check_untold", &BoundWorker::check_untold)
      .def("record", &BoundWorker::record, py::arg("enabled"))
      .def("take_spans", &BoundWorker::take_spans)
      .def_property_readonly("is_idle", &BoundWorker::is_idle)
      .def_property_readonly("is_closed", &BoundWorker::is_closed);
}

}  // namespace gs::adam
