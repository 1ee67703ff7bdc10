// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"

#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "bindings/arguments.hpp"

namespace gs::adam {
namespace {

using python::Array;

/// Rows and the threads that update them.
class BoundRows {
 public:
  BoundRows(const py::list& params, const py::list& exp_avg, const py::list& exp_avg_sq,
            const std::vector<int>& groups, const py::object& last_step,
            const Schedule& schedule, bool skip_non_finite, int n_threads)
      : pool_(shared_pool(n_threads)), rows_(make(params, exp_avg, exp_avg_sq, groups, last_step,
                                                  schedule, skip_non_finite)) {}

  std::int64_t n_rows() const { return rows_.n_rows(); }
  int n_threads() const { return pool_->size(); }

  void check(std::int32_t step, const py::object& rows, const py::object& grads,
             std::int32_t floor) const {
    const Ids ids = ids_from(rows, "rows", rows_.n_rows());
    gradients_from(grads, "grads", rows_.tensors(), ids, rows_.n_rows());
    const py::gil_scoped_release nogil;
    check_ids(ids, rows_.n_rows(), "rows", *pool_);
    rows_.check_turn(step, ids, floor, *pool_);
  }

  std::int64_t update(const StepPlan& plan, const py::object& rows,
                      const py::object& grads) const {
    const Ids ids = ids_from(rows, "rows", rows_.n_rows());
    const Gradients gradients =
        gradients_from(grads, "grads", rows_.tensors(), ids, rows_.n_rows());
    const py::gil_scoped_release nogil;
    return rows_.update(plan, ids, gradients, *pool_);
  }

  void update_rest(const StepPlan& plan) const {
    const py::gil_scoped_release nogil;
    rows_.update_rest(plan, *pool_);
  }

  void flush(const StepPlan& plan, const py::object& rows) const {
    const Ids ids = ids_from(rows, "rows", rows_.n_rows());
    const py::gil_scoped_release nogil;
    check_ids(ids, rows_.n_rows(), "rows", *pool_);
    rows_.flush(plan, ids, *pool_);
  }

  void lookahead(const StepPlan* plan, bool steps, const py::object& rows,
                 const py::object& pending, const py::object& grads,
                 const py::object& out) const {
    const Ids ids = ids_from(rows, "rows", rows_.n_rows());
    const Ids pending_ids = pending.is_none() ? Ids{nullptr, nullptr, 0}
                                              : ids_from(pending, "pending ids", rows_.n_rows());
    const Gradients gradients = gradients_from(grads, "pending grads", rows_.tensors(),
                                               pending_ids, pending_ids.size);
    const std::vector<Matrix> outputs = outputs_from(out, rows_.tensors(), ids.size);
    const py::gil_scoped_release nogil;
    check_ids(ids, rows_.n_rows(), "rows", *pool_);
    check_ids(pending_ids, rows_.n_rows(), "pending ids", *pool_);
    rows_.lookahead(plan, steps, ids, pending_ids, gradients, outputs, *pool_);
  }

 private:
  static Rows make(const py::list& params, const py::list& exp_avg, const py::list& exp_avg_sq,
                   const std::vector<int>& groups, const py::object& last_step,
                   const Schedule& schedule, bool skip_non_finite) {
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
    }
    GS_CHECK(schedule.semantics() != Semantics::kDeferred || marks != nullptr,
             "last_step must be given where rows sleep, got None");
    return Rows(n_rows, std::move(tensors), marks, schedule.semantics(),
                chosen_kernel(chosen_simd()), skip_non_finite);
  }

  std::shared_ptr<ThreadPool> pool_;
  Rows rows_;
};

}  // namespace

void register_rows(py::module_& module) {
  py::class_<BoundRows>(module, "Rows", py::module_local())
      .def(py::init<const py::list&, const py::list&, const py::list&, const std::vector<int>&,
                    const py::object&, const Schedule&, bool, int>(),
           py::arg("params"), py::arg("exp_avg"), py::arg("exp_avg_sq"), py::arg("groups"),
           py::arg("last_step"), py::arg("schedule"), py::arg("skip_non_finite"),
           py::arg("threads"))
      .def_property_readonly("n_rows", &BoundRows::n_rows)
      .def_property_readonly("n_threads", &BoundRows::n_threads)
      .def("check", &BoundRows::check, py::arg("step"), py::arg("rows"), py::arg("grads"),
           py::arg("floor"))
      .def("update", &BoundRows::update, py::arg("plan"), py::arg("rows"), py::arg("grads"))
      .def("update_rest", &BoundRows::update_rest, py::arg("plan"))
      .def("flush", &BoundRows::flush, py::arg("plan"), py::arg("rows"))
      .def("lookahead", &BoundRows::lookahead, py::arg("plan").none(true), py::arg("steps"),
           py::arg("rows"), py::arg("pending"), py::arg("grads"), py::arg("out"));
}

}  // namespace gs::adam
