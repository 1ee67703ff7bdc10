// SPDX-License-Identifier: Apache-2.0
// One group's steps so far, and what a row misses that sleeps through some of them.
// The mathematics is derived in docs/packages/gs-adam.md, "What a sleeping row misses".
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernel.hpp"

namespace gs::adam {

/// A group's options at one step, in the caller's precision.
struct Options {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
};

/// One step of a group as sleeping rows see it.
struct Missed {
  double rate;      // lr sqrt(1 - beta2^t) / (1 - beta1^t)
  double eps;       // eps sqrt(1 - beta2^t)
  double keep;      // 1 - lr weight_decay
  double log_keep;  // sum of log(keep) up to this step
};

/// The part of a CatchUp that no longer changes once the window has passed.
struct Settled {
  float total;
  float eps;
  float skew2;
  float skew3;
  float trust;
};

/// One step as rows see it that sleep on a device: complete when the step after it begins.
struct Past {
  Missed missed;
  Settled settled;  // of the sleep that has lasted a whole window at this step
  float decay1;     // beta1 to the power of the step's number
  float decay2;
};

/// Appended to by one thread at a time; entries that exist are never changed, so other threads may
/// read them meanwhile.
class Series {
 public:
  /// Throws gs::Error when no closed form exists for these betas.
  Series(double beta1, double beta2, std::int64_t capacity);

  /// The same steps with room for more, or, where the betas are others, for sleeps that begin now.
  std::shared_ptr<Series> grown(double beta1, double beta2, std::int64_t capacity) const;

  double beta1() const { return beta1_; }
  double beta2() const { return beta2_; }
  std::int32_t window() const { return window_; }
  /// Steps of a sleep that a replay sums; what the others would add is lost in float32.
  std::int32_t replay_terms() const { return replay_terms_; }
  std::int64_t capacity() const { return static_cast<std::int64_t>(missed_.size()) - 1; }

  const Missed& missed(std::int64_t step) const { return missed_[step]; }
  const Settled& settled(std::int64_t step) const { return settled_[step]; }
  Past past(std::int64_t step) const;
  /// Steps are 1, 2, ... up to capacity().
  void set(std::int64_t step, const Missed& missed) { missed_[step] = missed; }
  void settle(std::int64_t step, const Settled& settled) { settled_[step] = settled; }

  /// CatchUp of every sleep of 0..window steps that ends at `target`, by length. Settles the
  /// longest. Throws nothing; O(window).
  std::vector<CatchUp> recent(std::int32_t target);

  static void distant(const void* series, std::int32_t since, std::int32_t target, CatchUp* out);
  static float replay(const void* series, std::int32_t since, std::int32_t target, float exp_avg,
                      float exp_avg_sq);

 private:
  double kept(std::int64_t since, std::int64_t target) const;

  double beta1_;
  double beta2_;
  std::int32_t window_;
  std::int32_t replay_terms_;
  std::vector<Missed> missed_;    // [capacity + 1], by step
  std::vector<Settled> settled_;  // [capacity + 1], by the step slept since
  std::vector<float> power1_;     // [capacity + 1], beta1^d
  std::vector<float> power2_;
};

}  // namespace gs::adam
