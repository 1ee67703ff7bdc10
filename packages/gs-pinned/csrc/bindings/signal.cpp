// SPDX-License-Identifier: Apache-2.0
#include "signal.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "bindings/register.hpp"
#include "gs/python/gil.hpp"
#include "held_streams.hpp"
#include "ring.hpp"

#if defined(GS_WITH_CUDA)
#include "stream_word.hpp"
#endif

namespace py = pybind11;

namespace gs::pinned {
namespace {

using Clock = std::chrono::steady_clock;

// Repeats a blocking call until it has an answer, without the GIL, letting Python handle Ctrl-C in
// between. `call(left, waited)` gets the seconds left, negative for no limit, and those gone.
template <class Outcome, class Call>
Outcome until_answered(double timeout_s, Call&& call) {
  const Clock::time_point start = Clock::now();
  double left = timeout_s, waited = 0;
  for (;;) {
    Outcome outcome;
    {
      python::ReleaseGil release;
      outcome = call(left, waited);
    }
    if (outcome != Outcome::kAgain) return outcome;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    waited = std::chrono::duration<double>(Clock::now() - start).count();
    if (timeout_s >= 0) left = std::max(0.0, timeout_s - waited);
  }
}

bool wait_for(Signal& signal, std::uint32_t value, double timeout_s, double spin_s) {
  using Outcome = Signal::Outcome;
  const Outcome outcome = until_answered<Outcome>(timeout_s, [&](double left, double waited) {
    return signal.wait(value, left, std::max(0.0, spin_s - waited), waited);
  });
  return outcome != Outcome::kTimedOut;
}

// A slot and its release, by whoever lets go of it last. Python may drop it before anyone has seen
// it: Ctrl-C is raised right behind the call that returns it.
class TakenSlot {
 public:
  TakenSlot(std::shared_ptr<Ring> ring, const RingSlot& slot)
      : ring_(std::move(ring)), slot_(slot) {}
  TakenSlot(const TakenSlot&) = delete;
  TakenSlot& operator=(const TakenSlot&) = delete;
  ~TakenSlot() { release(); }

  const RingSlot& slot() const { return slot_; }
  bool is_released() const { return is_released_; }
  void release() {
    if (is_released_) return;
    is_released_ = true;
    if (slot_.signal->is_usable()) ring_->release(slot_.serial);  // else a child process has it
  }
  void begin_store() { ring_->begin_store(slot_.serial); }
  void end_store(int device, cuda::StreamView stream) {
    ring_->end_store(slot_.serial, device, stream);
  }

 private:
  const std::shared_ptr<Ring> ring_;
  const RingSlot slot_;
  bool is_released_ = false;
};

// None from a ring that was closed.
std::unique_ptr<TakenSlot> take(const std::shared_ptr<Ring>& ring, std::size_t bytes,
                                double timeout_s) {
  RingSlot slot;
  using Outcome = Ring::Outcome;
  const Outcome outcome = until_answered<Outcome>(
      timeout_s, [&](double left, double) { return ring->take(bytes, left, &slot); });
  if (outcome == Outcome::kTimedOut) {
    PyErr_SetString(
        PyExc_TimeoutError,
        ("no " + std::to_string(bytes) + " bytes of the ring became free in time").c_str());
    throw py::error_already_set();
  }
  if (outcome == Outcome::kClosed) return nullptr;
  return std::make_unique<TakenSlot>(ring, slot);
}

}  // namespace

void register_signal(py::module_& module) {
  module.attr("MAX_SIGNAL") = kMaxSignal;
  module.attr("POISON") = kPoison;
#if defined(GS_WITH_CUDA)
  module.def("use_stream_operations", &use_stream_operations, py::arg("enabled"));
#endif
  module.def("release_streams", &release_streams, py::arg("reason"), py::kw_only(),
             py::arg("ending"), py::call_guard<python::ReleaseGil>());
  py::class_<Signal, std::shared_ptr<Signal>>(module, "Signal", py::module_local())
      .def(py::init([](bool locked, int device) {
             python::ReleaseGil release;
             return share(new Signal(locked, device));
           }),
           py::kw_only(), py::arg("locked"), py::arg("device"))
      .def_property_readonly(
          "address",
          [](const Signal& signal) { return reinterpret_cast<std::uintptr_t>(signal.word()); })
      .def_property_readonly("value", &Signal::value)
      .def_property_readonly("is_usable", &Signal::is_usable)
      .def_property_readonly("is_poisoned", &Signal::is_poisoned)
      .def_property_readonly("reason", &Signal::reason)
      .def("set", &Signal::set, py::arg("value"), py::call_guard<python::ReleaseGil>())
      .def("poison", &Signal::poison, py::arg("reason"), py::call_guard<python::ReleaseGil>())
      .def(
          "set_on",
          [](Signal& signal, int device, std::uintptr_t stream, std::uint32_t value) {
            signal.set_on(device, cuda::StreamView::from_handle(stream), value);
          },
          py::arg("device"), py::arg("stream"), py::arg("value"),
          py::call_guard<python::ReleaseGil>())
      .def(
          "wait_on",
          [](Signal& signal, int device, std::uintptr_t stream, std::uint32_t value) {
            signal.wait_on(device, cuda::StreamView::from_handle(stream), value);
          },
          py::arg("device"), py::arg("stream"), py::arg("value"),
          py::call_guard<python::ReleaseGil>())
      .def("wait", &wait_for, py::arg("value"), py::arg("timeout_s"), py::arg("spin_s"));
}

void register_ring(py::module_& module) {
  py::class_<TakenSlot>(module, "TakenSlot", py::module_local())
      .def_property_readonly("begin", [](const TakenSlot& taken) { return taken.slot().begin; })
      .def_property_readonly("value", [](const TakenSlot& taken) { return taken.slot().value; })
      .def_property_readonly(
          "signal", [](const TakenSlot& taken) { return taken.slot().signal; },
          py::return_value_policy::reference_internal)
      .def_property_readonly("is_released", &TakenSlot::is_released)
      .def("release", &TakenSlot::release)
      .def("begin_store", &TakenSlot::begin_store)
      .def(
          "end_store",
          [](TakenSlot& taken, int device, std::uintptr_t stream) {
            taken.end_store(device, cuda::StreamView::from_handle(stream));
          },
          py::arg("device"), py::arg("stream"), py::call_guard<python::ReleaseGil>());
  py::class_<Ring, std::shared_ptr<Ring>>(module, "Ring", py::module_local())
      .def(py::init([](std::size_t bytes, bool locked, int device, bool may_be_pageable) {
             python::ReleaseGil release;
             return share(
                 new Ring(bytes, locked ? Lock::kCuda : Lock::kNone, device, may_be_pageable));
           }),
           py::arg("bytes"), py::kw_only(), py::arg("locked"), py::arg("device"),
           py::arg("may_be_pageable"))
      .def("take", &take, py::arg("bytes"), py::arg("timeout_s"))
      .def("close", &Ring::close, py::call_guard<python::ReleaseGil>())
      .def_property_readonly("memory", &Ring::memory)
      .def_property_readonly("size", &Ring::size)
      .def_property_readonly("taken", [](Ring& ring) {
        Ring::Taken taken{};
        {
          python::ReleaseGil release;
          taken = ring.taken();
        }
        return py::make_tuple(taken.slots, taken.bytes);
      });
}

}  // namespace gs::pinned
