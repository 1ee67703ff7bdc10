// SPDX-License-Identifier: Apache-2.0
#include "schedule.hpp"

#include <atomic>
#include <cmath>
#include <utility>

#include "gs/error.hpp"

namespace gs::adam {
namespace {

constexpr std::int64_t kFirstCapacity = 1024;
// Roots of second moments that float32 can't hold are below 4e-23, so epsilon outweighs them.
constexpr double kSmallestEps = 1e-20;

Step constants_of(const Options& o, std::int32_t step, bool bias_correction) {
  const double correction1 = bias_correction ? 1 - std::pow(o.beta1, step) : 1;
  const double correction2 = bias_correction ? 1 - std::pow(o.beta2, step) : 1;
  const double weight1 = 1 - o.beta1;
  Step s;
  s.from_gradient = !(static_cast<float>(weight1) < 0.5f);
  s.blend = static_cast<float>(s.from_gradient ? weight1 - 1 : weight1);
  s.beta2 = static_cast<float>(o.beta2);
  s.weight2 = static_cast<float>(1 - o.beta2);
  s.inverse_root = static_cast<float>(1 / std::sqrt(correction2));
  s.eps = static_cast<float>(o.eps);
  s.rate = static_cast<float>(o.lr / correction1);
  s.keep = static_cast<float>(1 - o.lr * o.weight_decay);
  return s;
}

Missed missed_of(const Options& o, std::int32_t step, double log_keep) {
  const double root = std::sqrt(1 - std::pow(o.beta2, step));
  const double decay = o.lr * o.weight_decay;
  return {o.lr * root / (1 - std::pow(o.beta1, step)), o.eps * root, 1 - decay,
          log_keep + std::log1p(-decay)};
}

}  // namespace

Sleep StepPlan::sleep(const std::vector<Table>& tables, int group, std::int32_t target) const {
  Sleep sleep{};
  sleep.target = target;
  if (tables.empty()) return sleep;
  sleep.recent = tables[group]->data();
  sleep.window = static_cast<std::int32_t>(tables[group]->size()) - 1;
  sleep.series = series_[group].get();
  sleep.distant = &Series::distant;
  sleep.replay = &Series::replay;
  return sleep;
}

std::int64_t StepPlan::recent_bytes() const {
  std::size_t entries = 0;
  for (const Table& table : before_) entries += table->size();
  return static_cast<std::int64_t>(entries * sizeof(CatchUp));
}

std::int64_t StepPlan::past_bytes(std::int32_t first) const {
  const auto entries = std::int64_t{step_ - first} * static_cast<std::int64_t>(series_.size());
  return entries * static_cast<std::int64_t>(sizeof(Past));
}

Schedule::Schedule(int n_groups, Semantics semantics, bool bias_correction)
    : n_groups_(n_groups), semantics_(semantics), bias_correction_(bias_correction) {
  static std::atomic<std::uint64_t> made{0};
  number_ = ++made;
}

void Schedule::check(const std::vector<Options>& options, bool all_awake) const {
  GS_CHECK(static_cast<int>(options.size()) == n_groups_, "options must be given for ", n_groups_,
           " groups, got ", options.size());
  GS_CHECK(step_ < INT32_MAX - 1, "step must be below 2**31 - 2");
  for (int g = 0; g < n_groups_; ++g) {
    const Options& o = options[g];
    GS_CHECK(o.lr >= 0 && std::isfinite(o.lr), "lr must be at least 0 and finite, got ", o.lr);
    GS_CHECK(o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1,
             "betas must be in [0, 1), got (", o.beta1, ", ", o.beta2, ")");
    GS_CHECK(o.eps >= 0 && std::isfinite(o.eps), "eps must be at least 0 and finite, got ", o.eps);
    GS_CHECK(o.weight_decay >= 0 && std::isfinite(o.weight_decay),
             "weight_decay must be at least 0 and finite, got ", o.weight_decay);
    if (semantics_ != Semantics::kDeferred) continue;
    GS_CHECK(o.eps >= kSmallestEps, "eps must be at least ", kSmallestEps,
             " where rows sleep, got ", o.eps, "; use semantics=\"dense\"");
    GS_CHECK(o.lr * o.weight_decay < 1, "lr * weight_decay must be below 1 where rows sleep, got ",
             o.lr * o.weight_decay);
    if (series_.empty() || all_awake) continue;
    GS_CHECK(series_[g]->beta1() == o.beta1 && series_[g]->beta2() == o.beta2, "betas must stay (",
             series_[g]->beta1(), ", ", series_[g]->beta2(), ") while rows sleep, got (", o.beta1,
             ", ", o.beta2, "); call flush() before the step");
  }
}

std::vector<StepPlan::Table> Schedule::tables(const std::vector<std::shared_ptr<Series>>& series,
                                              std::int32_t target) {
  std::vector<StepPlan::Table> tables;
  for (const std::shared_ptr<Series>& one : series)
    tables.push_back(std::make_shared<std::vector<CatchUp>>(one->recent(target)));
  return tables;
}

std::shared_ptr<StepPlan> Schedule::plan_of(std::int32_t step) const {
  auto plan = std::make_shared<StepPlan>();
  plan->step_ = step;
  plan->known_since_ = known_since_;
  plan->schedule_ = number_;
  return plan;
}

std::shared_ptr<const StepPlan> Schedule::propose(const std::vector<Options>& options,
                                                  bool all_awake) {
  check(options, all_awake);
  const std::shared_ptr<StepPlan> plan = plan_of(step_ + 1);
  for (const Options& o : options)
    plan->constants_.push_back(constants_of(o, plan->step_, bias_correction_));
  if (semantics_ == Semantics::kDeferred) {
    std::vector<std::shared_ptr<Series>> series = series_;
    series.resize(n_groups_);
    for (int g = 0; g < n_groups_; ++g) {
      const Options& o = options[g];
      if (!series[g]) {
        series[g] = std::make_shared<Series>(o.beta1, o.beta2,
                                             std::max<std::int64_t>(kFirstCapacity, 2 * step_));
      } else if (plan->step_ > series[g]->capacity() || series[g]->beta1() != o.beta1 ||
                 series[g]->beta2() != o.beta2) {
        // Plans in use keep the old one.
        series[g] = series[g]->grown(o.beta1, o.beta2, 2 * static_cast<std::int64_t>(step_));
      }
    }
    const bool same = last_ && series == series_;
    plan->before_ = same ? last_->after_ : tables(series, step_);
    // Nobody reads a step of a series before it is accepted.
    for (int g = 0; g < n_groups_; ++g)
      series[g]->set(plan->step_,
                     missed_of(options[g], plan->step_, series[g]->missed(step_).log_keep));
    plan->after_ = tables(series, plan->step_);
    plan->series_ = std::move(series);
  }
  return plan;
}

void Schedule::check_is_next(const StepPlan& plan) const {
  GS_CHECK(plan.step_ == step_ + 1, "step must be the next one (", step_ + 1, "), got ",
           plan.step_);
}

void Schedule::accept(std::shared_ptr<const StepPlan> plan) {
  check_is_next(*plan);
  series_ = plan->series_;
  step_ = plan->step_;
  last_ = std::move(plan);
}

std::shared_ptr<const StepPlan> Schedule::now() {
  if (!last_) {
    const std::shared_ptr<StepPlan> plan = plan_of(step_);
    plan->is_known_ = false;
    plan->constants_.resize(n_groups_);
    plan->after_ = tables(series_, step_);
    plan->series_ = series_;
    last_ = plan;
  }
  return last_;
}

std::shared_ptr<const StepPlan> Schedule::following() {
  const std::shared_ptr<StepPlan> plan = plan_of(step_ + 1);
  plan->is_known_ = false;
  plan->constants_.resize(n_groups_);
  plan->before_ = now()->after_;
  plan->series_ = series_;
  return plan;
}

void Schedule::restore(std::int32_t step, std::vector<std::shared_ptr<Series>> series,
                       std::int32_t known_since) {
  step_ = step;
  known_since_ = known_since;
  series_ = std::move(series);
  last_.reset();
}

void Schedule::restart(std::int32_t step) { restore(step, {}, step); }

}  // namespace gs::adam
