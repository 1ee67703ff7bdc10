// SPDX-License-Identifier: Apache-2.0
// Rows as Python sees them: with their threads, and calls split into checking and doing, so that a
// worker can do later what was checked when it was submitted.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/arguments.hpp"
#include "rows.hpp"
#include "schedule.hpp"

namespace gs::adam {

/// A call whose arguments fit. It needs no GIL and checks its ids before it changes anything;
/// arrays must outlive it.
struct Call {
  Ids rows;
  Ids pending;
  std::int64_t n_rows;
  std::function<void()> run;

  /// Throws what run() will where ids are wrong now. Does not wait for the optimizer's pool.
  void check() const;
};

class BoundRows {
 public:
  BoundRows(const py::list& params, const py::list& exp_avg, const py::list& exp_avg_sq,
            const std::vector<int>& groups, const py::object& last_step, const Schedule& schedule,
            bool skip_non_finite, int n_threads);

  std::int64_t n_rows() const { return rows_->n_rows(); }
  int n_threads() const { return pool_->size(); }

  /// The turn of each row is checked when the call runs, against `floor` as Rows::update's.
  Call update(const std::shared_ptr<StepPlan>& plan, const py::object& rows,
              const py::object& grads, std::int32_t floor) const;
  Call flush(const std::shared_ptr<StepPlan>& plan, const py::object& rows) const;
  Call wake(const std::shared_ptr<StepPlan>& plan, const py::object& rows) const;
  Call lookahead(const std::shared_ptr<StepPlan>& plan, bool steps, const py::object& rows,
                 const py::object& pending, const py::object& grads, const py::object& out,
                 std::int32_t floor) const;
  void update_rest(const StepPlan& plan) const;

  /// A whole step: updates rows, counts the step, and with `rest` updates all others. Throws before
  /// the step is counted, with nothing changed.
  void step(Schedule& schedule, const std::shared_ptr<StepPlan>& plan, const py::object& rows,
            const py::object& grads, bool rest) const;

 private:
  std::shared_ptr<ThreadPool> pool_;
  std::shared_ptr<const Rows> rows_;
  std::shared_ptr<std::atomic<std::int64_t>> nonfinite_rows_;
  std::uint64_t schedule_;
};

}  // namespace gs::adam
