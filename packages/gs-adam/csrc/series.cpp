// SPDX-License-Identifier: Apache-2.0
#include "series.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "gs/error.hpp"

namespace gs::adam {
namespace {

// Step sizes decay by r = beta1 / sqrt(beta2) a step. Beyond the window what is left of them is
// below 2^-60 of the largest, beyond the replay's terms below 2^-36.
constexpr double kWindowBits = 60;
constexpr double kReplayBits = 36;
constexpr double kLongestWindow = 16384;
// The formula is used where its relative error is below half of float32's rounding.
constexpr double kTolerance = 1.0 / (1 << 25);
// What rounding in double may leave of a fourth moment that is zero.
constexpr double kMomentNoise = 1e-13;

std::int32_t terms(double beta1, double beta2, double bits) {
  if (beta1 == 0) return 1;
  const double per_step = std::log2(std::sqrt(beta2) / beta1);
  return static_cast<std::int32_t>(std::ceil(std::max(1.0, bits / per_step)));
}

/// Zero where the power itself would be denormal and slow the kernel down: what a moment has
/// decayed to by then moves no parameter.
float power(double base, std::int64_t exponent) {
  const double value = std::pow(base, static_cast<double>(exponent));
  return value < FLT_MIN ? 0.0f : static_cast<float>(value);
}

/// Some sleeps at once. Divisions and roots take most of the time of a step, and a processor does
/// those of two sleeps or more in the time of one.
struct Sleeps {
  static constexpr int kMost = 8;

  double weight[5][kMost] = {};  // moments of epsilon: the sums of size * epsilon^n
  double smallest_eps[kMost] = {};
  double last_eps[kMost] = {};
  double keep[kMost] = {};
  double mean[kMost], skew2[kMost], skew3[kMost], trust[kMost];  // see settle()

  /// What the closed form needs, from the moments; anything where all sizes are 0. No branches, so
  /// that compilers vectorize the loop.
  void settle() {
    for (int i = 0; i < kMost; ++i) {
      mean[i] = weight[1][i] / weight[0][i];
      const double scale2 = weight[0][i] * mean[i] * mean[i];
      const double scale3 = scale2 * mean[i], scale4 = scale3 * mean[i];
      const double raw2 = weight[2][i] / scale2;
      const double raw3 = weight[3][i] / scale3;
      const double raw4 = weight[4][i] / scale4;
      skew2[i] = std::max(0.0, raw2 - 1);
      skew3[i] = raw3 - 3 * raw2 + 2;
      const double skew4 = std::max(0.0, raw4 - 4 * raw3 + 6 * raw2 - 3) + kMomentNoise;
      // |error| <= skew4 rho^4 mean / smallest.
      trust[i] = std::sqrt(std::sqrt(kTolerance * smallest_eps[i] / (mean[i] * skew4)));
    }
  }

  Settled settled(int i) const {
    if (weight[0][i] == 0) return {0.0f, static_cast<float>(last_eps[i]), 0.0f, 0.0f, 2.0f};
    return {static_cast<float>(weight[0][i]), static_cast<float>(mean[i]),
            static_cast<float>(skew2[i]), static_cast<float>(skew3[i]),
            static_cast<float>(std::isfinite(trust[i]) ? trust[i] : 0.0)};
  }
};

}  // namespace

Series::Series(double beta1, double beta2, std::int64_t capacity) : beta1_(beta1), beta2_(beta2) {
  // With beta1 > beta2 what epsilon weighs would grow with the sleep, beyond any bound.
  GS_CHECK(
      beta1 <= beta2 && beta1 * beta1 < beta2 && terms(beta1, beta2, kWindowBits) <= kLongestWindow,
      "betas must satisfy beta1 <= beta2, and beta1**2 < beta2 with room to spare, for rows to "
      "sleep, got (",
      beta1, ", ", beta2, "); use semantics=\"dense\"");
  window_ = terms(beta1, beta2, kWindowBits);
  replay_terms_ = terms(beta1, beta2, kReplayBits);
  missed_.resize(capacity + 1, Missed{0, 0, 1, 0});
  settled_.resize(capacity + 1);
  power1_.resize(capacity + 1);
  power2_.resize(capacity + 1);
  for (std::int64_t d = 0; d <= capacity; ++d) {
    power1_[d] = power(beta1, d);
    power2_[d] = power(beta2, d);
  }
}

std::shared_ptr<Series> Series::grown(double beta1, double beta2, std::int64_t capacity) const {
  auto series = std::make_shared<Series>(beta1, beta2, std::max(capacity, this->capacity()));
  std::copy(missed_.begin(), missed_.end(), series->missed_.begin());
  std::copy(settled_.begin(), settled_.end(), series->settled_.begin());
  return series;
}

Past Series::past(std::int64_t step) const {
  const Settled settled = step >= window_ ? settled_[step - window_] : Settled{};
  return {missed_[step], settled, power1_[step], power2_[step]};
}

double Series::kept(std::int64_t since, std::int64_t target) const {
  return std::exp(missed_[target].log_keep - missed_[since].log_keep);
}

std::vector<CatchUp> Series::recent(std::int32_t target) {
  const std::int32_t longest = std::min(window_, target);
  std::vector<CatchUp> table(longest + 1);
  table[0] = {0, static_cast<float>(missed_[target].eps), 0, 0, 2, 1, 1, 1};
  if (!(table[0].eps > 0)) table[0].eps = 1;
  const double r = beta1_ / std::sqrt(beta2_), grows = 1 / std::sqrt(beta2_);
  double weight[5] = {}, keep = 1, smallest = HUGE_VAL;
  Settled settled{};
  for (std::int32_t done = 0; done < longest; done += Sleeps::kMost) {
    Sleeps sleeps;
    const std::int32_t n = std::min(longest - done, Sleeps::kMost);
    for (std::int32_t i = 0; i < n; ++i) {
      // From the sleep that began one step later: one more step in front, all others one older.
      const Missed& first = missed_[target - done - i];
      double ratio = r, eps_power = 1;
      for (int power = 0; power < 5; ++power) {
        weight[power] = ratio * (first.rate * keep * eps_power + weight[power]);
        sleeps.weight[power][i] = weight[power];
        ratio *= grows;
        eps_power *= first.eps;
      }
      sleeps.smallest_eps[i] = smallest = grows * std::min(first.eps, smallest);
      sleeps.last_eps[i] = first.eps;
      sleeps.keep[i] = keep *= first.keep;
    }
    sleeps.settle();
    for (std::int32_t i = 0; i < n; ++i) {
      const std::int32_t slept = done + i + 1;
      settled = sleeps.settled(i);
      table[slept] = {
          settled.total, settled.eps,    settled.skew2,  settled.skew3,
          settled.trust, power1_[slept], power2_[slept], static_cast<float>(sleeps.keep[i])};
    }
  }
  if (longest == window_) settled_[target - window_] = settled;
  return table;
}

void Series::distant(const void* series, std::int32_t since, std::int32_t target, CatchUp* out) {
  const Series& self = *static_cast<const Series*>(series);
  const Settled& settled = self.settled_[since];
  const std::int32_t slept = target - since;
  *out = {settled.total, settled.eps,         settled.skew2,       settled.skew3,
          settled.trust, self.power1_[slept], self.power2_[slept], 1.0f};
  if (self.missed_[target].log_keep == self.missed_[since].log_keep) return;
  out->total = static_cast<float>(settled.total * self.kept(since + self.window_, target));
  out->keep = static_cast<float>(self.kept(since, target));
}

float Series::replay(const void* series, std::int32_t since, std::int32_t target, float exp_avg,
                     float exp_avg_sq) {
  const Series& self = *static_cast<const Series*>(series);
  const double decay = std::sqrt(self.beta2_);
  const bool decays = self.missed_[target].log_keep != self.missed_[since].log_keep;
  const std::int32_t last = std::min(target, since + self.replay_terms_);
  double m = exp_avg, root = std::sqrt(static_cast<double>(exp_avg_sq)), moved = 0;
  for (std::int32_t step = since + 1; step <= last; ++step) {
    m *= self.beta1_;
    root *= decay;
    const Missed& missed = self.missed_[step];
    moved += missed.rate * m / (root + missed.eps) * (decays ? self.kept(step, target) : 1.0);
  }
  return static_cast<float>(moved);
}

}  // namespace gs::adam
