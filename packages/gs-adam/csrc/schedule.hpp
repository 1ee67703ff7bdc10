// SPDX-License-Identifier: Apache-2.0
// The steps of an optimizer: each step's constants, and what rows miss that sleep through them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernel.hpp"
#include "series.hpp"

namespace gs::adam {

enum class Semantics { kDense, kDeferred, kSparse };

/// One step, frozen when it began. Immutable but for a count; kept alive by the work that still
/// needs it.
class StepPlan {
 public:
  std::int32_t step() const { return step_; }
  int n_groups() const { return static_cast<int>(constants_.size()); }
  const Step& constants(int group) const { return constants_[group]; }
  Sleep before(int group) const { return sleep(before_, group, step_ - 1); }
  Sleep after(int group) const { return sleep(after_, group, step_); }
  /// Where rows sleep; its steps before this one are final.
  bool sleeps() const { return !series_.empty(); }
  /// Bytes of before()'s tables of all groups, one after the other; 0 where rows do not sleep.
  std::int64_t recent_bytes() const;
  /// Bytes of Past of all groups for the steps from `first` on that are before this one; 0 where
  /// rows do not sleep.
  std::int64_t past_bytes(std::int32_t first) const;
  const Series& series(int group) const { return *series_[group]; }
  /// Whether the steps before both plans are the same ones.
  bool shares_past(const StepPlan& other) const { return series_ == other.series_; }
  /// Whether before() and the steps before it are the same ones in both plans: of a step, and of
  /// the step to come that following() made before this step began.
  bool shares_sleeps(const StepPlan& other) const {
    return step_ == other.step_ && before_ == other.before_ && shares_past(other);
  }
  /// The step since which rates are known: rows that have slept for longer cannot be caught up.
  std::int32_t known_since() const { return known_since_; }
  /// Of which schedule it is a step.
  std::uint64_t schedule() const { return schedule_; }
  /// Whether its constants are known; those of a step of a restored schedule are not.
  bool is_known() const { return is_known_; }
  /// Rows that have been updated in this step, each of them once.
  std::int64_t updated() const { return updated_.load(std::memory_order_acquire); }
  void count_updated(std::int64_t rows) const {
    updated_.fetch_add(rows, std::memory_order_release);
  }

 private:
  friend class Schedule;
  using Table = std::shared_ptr<const std::vector<CatchUp>>;

  Sleep sleep(const std::vector<Table>& tables, int group, std::int32_t target) const;

  std::int32_t step_ = 0;
  std::int32_t known_since_ = 0;
  std::uint64_t schedule_ = 0;
  bool is_known_ = true;
  std::vector<Step> constants_;
  std::vector<Table> before_, after_;  // empty where rows do not sleep
  std::vector<std::shared_ptr<Series>> series_;
  mutable std::atomic<std::int64_t> updated_{0};
};

/// Counts steps and remembers their rates. propose() may run while other threads use earlier plans.
class Schedule {
 public:
  Schedule(int n_groups, Semantics semantics, bool bias_correction);

  /// No other schedule of the process has it.
  std::uint64_t number() const { return number_; }
  int n_groups() const { return n_groups_; }
  Semantics semantics() const { return semantics_; }
  std::int32_t step() const { return step_; }
  /// See StepPlan::known_since(); restart() and restore() set it.
  std::int32_t known_since() const { return known_since_; }

  /// The next step, which has begun once it is accepted; until then another may be proposed. Where
  /// rows sleep, betas other than the last step's need `all_awake`. Throws gs::Error when an option
  /// is out of range.
  std::shared_ptr<const StepPlan> propose(const std::vector<Options>& options, bool all_awake);
  void accept(std::shared_ptr<const StepPlan> plan);
  void check_is_next(const StepPlan& plan) const;

  /// Counts rows with a NaN or Inf gradient; shared with the work that still runs.
  const std::shared_ptr<std::atomic<std::int64_t>>& nonfinite_rows() const {
    return nonfinite_rows_;
  }

  /// The last step begun. After restore() its constants are not known, only how rows sleep.
  std::shared_ptr<const StepPlan> now();

  /// The step to come as far as sleeping rows go, who wake up to the last step begun; its constants
  /// are not known. Where rows sleep in no step so far it has no sleeps.
  std::shared_ptr<const StepPlan> following();

  /// Where rows sleep: (rate, eps, keep, log_keep) of every step and (total, eps, skew2, skew3,
  /// trust) of every sleep that outlasted the window, [step + 1] a group, and its betas. restore()
  /// continues from them bit for bit.
  const Series* series(int group) const { return series_.empty() ? nullptr : series_[group].get(); }
  void restore(std::int32_t step, std::vector<std::shared_ptr<Series>> series,
               std::int32_t known_since = 0);
  /// Counts from `step`, nothing asleep: the rates of the steps so far are not known.
  void restart(std::int32_t step);

 private:
  void check(const std::vector<Options>& options, bool all_awake) const;
  static std::vector<StepPlan::Table> tables(const std::vector<std::shared_ptr<Series>>& series,
                                             std::int32_t target);
  std::shared_ptr<StepPlan> plan_of(std::int32_t step) const;

  std::uint64_t number_;
  int n_groups_;
  Semantics semantics_;
  bool bias_correction_;
  std::int32_t step_ = 0;
  std::int32_t known_since_ = 0;
  std::vector<std::shared_ptr<Series>> series_;
  std::shared_ptr<const StepPlan> last_;
  std::shared_ptr<std::atomic<std::int64_t>> nonfinite_rows_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
};

}  // namespace gs::adam
