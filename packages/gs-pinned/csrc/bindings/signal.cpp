// SPDX-License-Identifier: Apache-2.0
#include "signal.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "bindings/register.hpp"
#include "gs/python/release_gil.hpp"
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

// None from a ring that was closed.
std::optional<RingSlot> take(Ring& ring, std::size_t bytes, double timeout_s) {
  RingSlot slot;
  using Outcome = Ring::Outcome;
  const Outcome outcome = until_answered<Outcome>(
      timeout_s, [&](double left, double) { return ring.take(bytes, left, &slot); });
  if (outcome == Outcome::kTimedOut) {
    PyErr_SetString(
        PyExc_TimeoutError,
        ("no " + std::to_string(bytes) + " bytes of the ring became free in time").c_str());
    throw py::error_already_set();
  }
  if (outcome == Outcome::kClosed) return std::nullopt;
  return slot;
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
      .def("set_on", &Signal::set_on, py::arg("device"), py::arg("stream"), py::arg("value"),
           py::call_guard<python::ReleaseGil>())
      .def("wait_on", &Signal::wait_on, py::arg("device"), py::arg("stream"), py::arg("value"),
           py::call_guard<python::ReleaseGil>())
      .def("wait", &wait_for, py::arg("value"), py::arg("timeout_s"), py::arg("spin_s"));
}

void register_ring(py::module_& module) {
  py::class_<RingSlot>(module, "RingSlot", py::module_local())
      .def_readonly("serial", &RingSlot::serial)
      .def_readonly("begin", &RingSlot::begin)
      .def_readonly("bytes", &RingSlot::bytes)
      .def_readonly("value", &RingSlot::value)
      .def_property_readonly(
          "signal", [](const RingSlot& slot) { return slot.signal; },
          py::return_value_policy::reference);
  py::class_<Ring, std::shared_ptr<Ring>>(module, "Ring", py::module_local())
      .def(py::init([](std::size_t bytes, bool locked, int device, bool may_be_pageable) {
             python::ReleaseGil release;
             return share(
                 new Ring(bytes, locked ? Lock::kCuda : Lock::kNone, device, may_be_pageable));
           }),
           py::arg("bytes"), py::kw_only(), py::arg("locked"), py::arg("device"),
           py::arg("may_be_pageable"))
      .def("take", &take, py::arg("bytes"), py::arg("timeout_s"))
      .def("mark_stored", &Ring::mark_stored, py::arg("serial"))
      .def("release", &Ring::release, py::arg("serial"))
      .def("close", &Ring::close)
      .def_property_readonly("memory", &Ring::memory)
      .def_property_readonly("size", &Ring::size)
      .def_property_readonly("taken_bytes", &Ring::taken_bytes)
      .def_property_readonly("taken_slots", &Ring::taken_slots);
}

}  // namespace gs::pinned
