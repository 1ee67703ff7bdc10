// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"

#include <pybind11/stl.h>

#include "bindings/bound_rows.hpp"
#include "mask.hpp"

namespace gs::adam {
namespace {

using python::Array;

std::shared_ptr<const Rows> make_rows(const py::list& params, const py::list& exp_avg,
                                      const py::list& exp_avg_sq, const std::vector<int>& groups,
                                      const py::object& last_step, const Schedule& schedule,
                                      bool skip_non_finite) {
  std::int64_t n_rows = 0;
  std::vector<Tensor> tensors = tensors_from(params, exp_avg, exp_avg_sq, groups, &n_rows);
  for (const Tensor& t : tensors)
    GS_CHECK(t.group >= 0 && t.group < schedule.n_groups(), "groups must be in [0, ",
             schedule.n_groups(), "), got ", t.group);
  std::int32_t* marks = nullptr;
  if (!last_step.is_none()) {
    const Array array(last_step, "last_step");
    array.shape({n_rows}).on(-1).contiguous().writable();
    marks = array.data<std::int32_t>();
    std::vector<Columns> written = written_by(tensors, n_rows);
    static_assert(sizeof *marks == sizeof *written[0].data);
    written.push_back({"last_step", 0, reinterpret_cast<const float*>(marks), n_rows, 1, 1});
    check_apart(written);
  }
  // An array without elements may have no address.
  GS_CHECK(schedule.semantics() != Semantics::kDeferred || !last_step.is_none(),
           "last_step must be given where rows sleep, got None");
  return std::make_shared<Rows>(n_rows, std::move(tensors), marks, schedule.semantics(),
                                chosen_kernel(chosen_simd()), skip_non_finite);
}

void run(const Call& call) {
  const python::ReleaseGil nogil;
  call.run();
}

std::int64_t count_masked(const py::object& object) {
  const Array mask(object, "mask");
  const std::uint8_t* const bytes =
      mask.shape({python::kAny}).on(-1).contiguous().data<const std::uint8_t>();
  const python::ReleaseGil nogil;
  return Mask(bytes, mask.size(0), callers_pool()).count();
}

void write_masked(const py::object& object, const py::object& out) {
  const Array mask(object, "mask"), ids(out, "out");
  const std::uint8_t* const bytes =
      mask.shape({python::kAny}).on(-1).contiguous().data<const std::uint8_t>();
  GS_CHECK(mask.size(0) < INT32_MAX, "mask must have fewer than 2**31 - 1 rows, got ",
           mask.size(0));
  ids.shape({python::kAny}).on(-1).contiguous().writable();
  auto* const first = ids.data<std::int32_t>();
  const python::ReleaseGil nogil;
  const Mask rows(bytes, mask.size(0), callers_pool());
  GS_CHECK(ids.size(0) == rows.count(), "out must have shape (", rows.count(), "), got ",
           ids.shape_text());
  rows.write(first);
}

}  // namespace

BoundRows::BoundRows(const py::list& params, const py::list& exp_avg, const py::list& exp_avg_sq,
                     const std::vector<int>& groups, const py::object& last_step,
                     const Schedule& schedule, bool skip_non_finite, int n_threads)
    : pool_(shared_pool(n_threads)),
      rows_(make_rows(params, exp_avg, exp_avg_sq, groups, last_step, schedule, skip_non_finite)),
      nonfinite_rows_(schedule.nonfinite_rows()),
      schedule_(schedule.number()) {}

Call BoundRows::update(const std::shared_ptr<StepPlan>& plan, const py::object& rows,
                       const py::object& grads, std::int32_t floor) const {
  const Ids ids = ids_from(rows, "rows", n_rows());
  Gradients gradients = gradients_from(grads, "grads", rows_->tensors(), ids, n_rows());
  return {ids,
          {},
          n_rows(),
          [=, gradients = std::move(gradients), tensors = rows_, pool = pool_,
           count = nonfinite_rows_] {
            const std::int64_t bad = tensors->update(*plan, ids, gradients, floor, *pool);
            if (bad != 0) count->fetch_add(bad);
          }};
}

Call BoundRows::flush(const std::shared_ptr<StepPlan>& plan, const py::object& rows) const {
  const Ids ids = ids_from(rows, "rows", n_rows());
  return {
      ids, {}, n_rows(), [=, tensors = rows_, pool = pool_] { tensors->flush(*plan, ids, *pool); }};
}

Call BoundRows::wake(const std::shared_ptr<StepPlan>& plan, const py::object& rows) const {
  const Ids ids = ids_from(rows, "rows", n_rows());
  return {
      ids, {}, n_rows(), [=, tensors = rows_, pool = pool_] { tensors->wake(*plan, ids, *pool); }};
}

Call BoundRows::lookahead(const std::shared_ptr<StepPlan>& plan, bool steps, const py::object& rows,
                          const py::object& pending, const py::object& grads, const py::object& out,
                          std::int32_t floor) const {
  GS_CHECK(plan->schedule() == schedule_,
           "as_of must be what now() of the same optimizer returned, got another one's step");
  const Ids ids = ids_from(rows, "rows", n_rows());
  const Ids pending_ids =
      pending.is_none() ? Ids{nullptr, nullptr, 0} : ids_from(pending, "pending ids", n_rows());
  Gradients gradients =
      gradients_from(grads, "pending grads", rows_->tensors(), pending_ids, pending_ids.size);
  std::vector<Matrix> outputs = outputs_from(out, rows_->tensors(), n_rows(), ids.size);
  return {ids, pending_ids, n_rows(),
          [=, gradients = std::move(gradients), outputs = std::move(outputs), tensors = rows_,
           pool = pool_] {
            tensors->lookahead(*plan, steps, ids, pending_ids, gradients, outputs, floor, *pool);
          }};
}

void Call::check() const {
  const python::ReleaseGil nogil;
  check_ids(rows, n_rows, "rows", callers_pool());
  check_ids(pending, n_rows, "pending ids", callers_pool());
}

void BoundRows::update_rest(const StepPlan& plan) const {
  const python::ReleaseGil nogil;
  rows_->update_rest(plan, *pool_);
}

void BoundRows::step(Schedule& schedule, const std::shared_ptr<StepPlan>& plan,
                     const py::object& rows, const py::object& grads, bool rest) const {
  schedule.check_is_next(*plan);
  gs::adam::run(update(plan, rows, grads, schedule.step()));
  schedule.accept(plan);
  if (rest) update_rest(*plan);
}

void register_rows(py::module_& module) {
  using Plan = std::shared_ptr<StepPlan>;
  module.def("count_rows", &count_masked, py::arg("mask"));
  module.def("write_rows", &write_masked, py::arg("mask"), py::arg("out"));
  py::class_<BoundRows>(module, "Rows", py::module_local())
      .def(py::init<const py::list&, const py::list&, const py::list&, const std::vector<int>&,
                    const py::object&, const Schedule&, bool, int>(),
           py::arg("params"), py::arg("exp_avg"), py::arg("exp_avg_sq"), py::arg("groups"),
           py::arg("last_step"), py::arg("schedule"), py::arg("skip_non_finite"),
           py::arg("threads"))
      .def_property_readonly("n_rows", &BoundRows::n_rows)
      .def_property_readonly("n_threads", &BoundRows::n_threads)
      .def(
          "update",
          [](const BoundRows& self, const Plan& plan, const py::object& rows,
             const py::object& grads,
             std::int32_t floor) { run(self.update(plan, rows, grads, floor)); },
          py::arg("plan"), py::arg("rows"), py::arg("grads"), py::arg("floor"))
      .def("update_rest", &BoundRows::update_rest, py::arg("plan"))
      .def("step", &BoundRows::step, py::arg("schedule"), py::arg("plan"), py::arg("rows"),
           py::arg("grads"), py::kw_only(), py::arg("rest"))
      .def(
          "flush",
          [](const BoundRows& self, const Plan& plan, const py::object& rows) {
            run(self.flush(plan, rows));
          },
          py::arg("plan"), py::arg("rows"))
      .def(
          "wake",
          [](const BoundRows& self, const Plan& plan, const py::object& rows) {
            run(self.wake(plan, rows));
          },
          py::arg("plan"), py::arg("rows"))
      .def(
          "lookahead",
          [](const BoundRows& self, const Plan& plan, bool steps, const py::object& rows,
             const py::object& pending, const py::object& grads, const py::object& out,
             std::int32_t floor) {
            run(self.lookahead(plan, steps, rows, pending, grads, out, floor));
          },
          py::arg("plan"), py::arg("steps"), py::arg("rows"), py::arg("pending"), py::arg("grads"),
          py::arg("out"), py::arg("floor"));
}

}  // namespace gs::adam
