// SPDX-License-Identifier: Apache-2.0
// What one value has missed on a device: the operations of kernel_math.hpp and, in double, of
// Series in their order. For files whose products and sums are not fused (CMakeLists.txt).
#pragma once

#include <cstdint>

#include "device_slots.hpp"

namespace gs::adam {
namespace {

/// A sleep until the step before the one that begins.
struct Slept {
  std::int32_t since;
  std::int32_t target;

  __device__ std::int32_t steps() const { return target - since; }
};

__device__ __forceinline__ const Past& past_of(const DeviceSleep& sleep, std::int32_t step) {
  return sleep.past[static_cast<std::int64_t>(step) * sleep.n_groups];
}

__device__ __forceinline__ double kept(const DeviceSleep& sleep, std::int32_t since,
                                       std::int32_t target) {
  return exp(past_of(sleep, target).missed.log_keep - past_of(sleep, since).missed.log_keep);
}

__device__ __forceinline__ bool decays(const DeviceSleep& sleep, Slept slept) {
  return past_of(sleep, slept.target).missed.log_keep !=
         past_of(sleep, slept.since).missed.log_keep;
}

/// Series::replay.
__device__ float replay(const DeviceSleep& sleep, Slept slept, float exp_avg, float exp_avg_sq) {
  const bool has_decay = decays(sleep, slept);
  const std::int32_t last = min(slept.target, slept.since + sleep.replay_terms);
  double m = exp_avg, root = sqrt(static_cast<double>(exp_avg_sq)), moved = 0;
  for (std::int32_t step = slept.since + 1; step <= last; ++step) {
    m *= sleep.beta1;
    root *= sleep.root_beta2;
    const Missed& missed = past_of(sleep, step).missed;
    moved +=
        missed.rate * m / (root + missed.eps) * (has_decay ? kept(sleep, step, slept.target) : 1.0);
  }
  return static_cast<float>(moved);
}

/// What a row has missed, from a table where it has slept for a window at most, else as
/// Series::distant but for decays.
__device__ __forceinline__ CatchUp look_up(const DeviceSleep& sleep, Slept slept) {
  if (slept.steps() <= sleep.window) {
    const auto* const at = reinterpret_cast<const float4*>(sleep.recent + slept.steps());
    const float4 a = __ldg(at), b = __ldg(at + 1);
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  }
  const Settled settled = past_of(sleep, slept.since + sleep.window).settled;
  const Past& powers = past_of(sleep, slept.steps());
  return {settled.total, settled.eps,   settled.skew2, settled.skew3,
          settled.trust, powers.decay1, powers.decay2, 1.0f};
}

/// Whether look_up has left something out.
__device__ __forceinline__ bool lacks_decay(const DeviceSleep& sleep, Slept slept) {
  return slept.steps() > sleep.window && decays(sleep, slept);
}

__device__ __forceinline__ void add_decay(const DeviceSleep& sleep, Slept slept, CatchUp& missed) {
  missed.total =
      static_cast<float>(missed.total * kept(sleep, slept.since + sleep.window, slept.target));
  missed.keep = static_cast<float>(kept(sleep, slept.since, slept.target));
}

/// How far a sleep has moved a value. False where the formula is not to be trusted.
__device__ __forceinline__ bool movement(const CatchUp& k, float m, float v, float& moved) {
  const float inverse = 1.0f / (sqrtf(v) + k.eps);
  const float rho = k.eps * inverse;
  const float correction = fmaf(rho * rho, k.skew2 - k.skew3 * rho, 1.0f);
  moved = m * inverse * k.total * correction;
  return !(rho > k.trust && m != 0.0f);
}

__device__ __forceinline__ void end_sleep(const CatchUp& k, float moved, float& w, float& m,
                                          float& v) {
  w = w * k.keep - moved;
  m *= k.decay1;
  v *= k.decay2;
}

}  // namespace
}  // namespace gs::adam
