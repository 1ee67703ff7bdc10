// SPDX-License-Identifier: Apache-2.0
#include "schedule.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>

#include "bindings/arguments.hpp"

namespace gs::adam {
namespace {

constexpr int kMissedFields = 4, kSettledFields = 5;

Semantics semantics_from(const std::string& name) {
  if (name == "dense") return Semantics::kDense;
  if (name == "deferred") return Semantics::kDeferred;
  GS_CHECK(name == "sparse", "semantics must be dense, deferred or sparse, got ", name);
  return Semantics::kSparse;
}

py::object state_of(const Schedule& schedule, int group) {
  const Series* series = schedule.series(group);
  if (series == nullptr) return py::none();
  const std::int32_t step = schedule.step();
  py::array_t<double> missed({step + 1, kMissedFields});
  py::array_t<float> settled({step + 1, kSettledFields});
  auto missed_at = missed.mutable_unchecked<2>();
  auto settled_at = settled.mutable_unchecked<2>();
  for (std::int32_t s = 0; s <= step; ++s) {
    const Missed& m = series->missed(s);
    const Settled& t = series->settled(s);
    const std::array<double, kMissedFields> from{m.rate, m.eps, m.keep, m.log_keep};
    const std::array<float, kSettledFields> to{t.total, t.eps, t.skew2, t.skew3, t.trust};
    for (int k = 0; k < kMissedFields; ++k) missed_at(s, k) = from[k];
    for (int k = 0; k < kSettledFields; ++k) settled_at(s, k) = to[k];
  }
  py::dict state;
  state["beta1"] = series->beta1();
  state["beta2"] = series->beta2();
  state["known_since"] = static_cast<double>(schedule.known_since());
  state["missed"] = missed;
  state["settled"] = settled;
  return std::move(state);
}

std::shared_ptr<Series> series_from(const py::dict& state, std::int32_t step) {
  const auto missed = state["missed"].cast<py::array_t<double, py::array::c_style>>();
  const auto settled = state["settled"].cast<py::array_t<float, py::array::c_style>>();
  const std::int64_t n = std::int64_t{step} + 1;
  GS_CHECK(missed.ndim() == 2 && missed.shape(0) == n && missed.shape(1) == kMissedFields,
           "missed must have shape (", n, ", ", kMissedFields, ")");
  GS_CHECK(settled.ndim() == 2 && settled.shape(0) == n && settled.shape(1) == kSettledFields,
           "settled must have shape (", n, ", ", kSettledFields, ")");
  auto series =
      std::make_shared<Series>(state["beta1"].cast<double>(), state["beta2"].cast<double>(),
                               std::max<std::int64_t>(1024, 2 * static_cast<std::int64_t>(step)));
  const auto m = missed.unchecked<2>();
  const auto t = settled.unchecked<2>();
  for (std::int32_t s = 0; s <= step; ++s) {
    series->set(s, {m(s, 0), m(s, 1), m(s, 2), m(s, 3)});
    series->settle(s, {t(s, 0), t(s, 1), t(s, 2), t(s, 3), t(s, 4)});
  }
  return series;
}

}  // namespace

void register_schedule(py::module_& module) {
  py::class_<StepPlan, std::shared_ptr<StepPlan>>(module, "StepPlan", py::module_local())
      .def_property_readonly("step", &StepPlan::step)
      // Of what upload_sleeps brings to a device: the step's sleeps, and the steps before it from
      // one on.
      .def_property_readonly("recent_bytes", &StepPlan::recent_bytes)
      .def("past_bytes", &StepPlan::past_bytes, py::arg("first"))
      .def("shares_past", &StepPlan::shares_past, py::arg("other"))
      .def("shares_sleeps", &StepPlan::shares_sleeps, py::arg("other"));

  py::class_<Schedule>(module, "Schedule", py::module_local())
      .def(py::init([](int n_groups, const std::string& semantics, bool bias_correction) {
             return Schedule(n_groups, semantics_from(semantics), bias_correction);
           }),
           py::arg("n_groups"), py::arg("semantics"), py::arg("bias_correction"))
      .def_property_readonly("step", &Schedule::step)
      .def_property_readonly("known_since", &Schedule::known_since)
      .def_property_readonly("nonfinite_rows",
                             [](const Schedule& self) { return self.nonfinite_rows()->load(); })
      .def(
          "propose",
          [](Schedule& self, const std::vector<std::array<double, 5>>& options, bool all_awake) {
            std::vector<Options> groups;
            for (const auto& o : options) groups.push_back({o[0], o[1], o[2], o[3], o[4]});
            return std::const_pointer_cast<StepPlan>(self.propose(groups, all_awake));
          },
          py::arg("options"), py::arg("all_awake") = false)
      .def(
          "accept",
          [](Schedule& self, const std::shared_ptr<StepPlan>& plan) { self.accept(plan); },
          py::arg("plan"))
      .def("now", [](Schedule& self) { return std::const_pointer_cast<StepPlan>(self.now()); })
      .def("following",
           [](Schedule& self) { return std::const_pointer_cast<StepPlan>(self.following()); })
      .def("restart", &Schedule::restart, py::arg("step"))
      .def(
          "restore",
          [](Schedule& self, std::int32_t step, const std::vector<py::dict>& groups) {
            GS_CHECK(step >= 0, "step must be at least 0, got ", step);
            GS_CHECK(static_cast<int>(groups.size()) == self.n_groups(), "schedule must have ",
                     self.n_groups(), " groups, got ", groups.size());
            std::vector<std::shared_ptr<Series>> series;
            std::int32_t known_since = 0;
            for (const py::dict& state : groups) {
              series.push_back(series_from(state, step));
              if (!state.contains("known_since")) continue;  // of a version that did not say
              const auto since = state["known_since"].cast<double>();
              GS_CHECK(since >= 0 && since <= step, "known_since must be in [0, ", step, "], got ",
                       since);
              known_since = std::max(known_since, static_cast<std::int32_t>(since));
            }
            self.restore(step, std::move(series), known_since);
          },
          py::arg("step"), py::arg("groups"))
      .def("state", &state_of, py::arg("group"));
}

}  // namespace gs::adam
