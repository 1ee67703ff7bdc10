// SPDX-License-Identifier: Apache-2.0
// The row kernel one value at a time: the definition that the other levels are tested against.
// On ARM four values at a time.
#if defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#else
#include <cmath>
#endif

#include "kernel_body.hpp"

namespace gs::adam {
namespace {

#if defined(__ARM_NEON) && defined(__aarch64__)

struct Vector {
  using Float = float32x4_t;
  static constexpr int kLanes = 4;
  struct All {
    static Float load(const float* p) { return vld1q_f32(p); }
    static void store(float* p, Float x) { vst1q_f32(p, x); }
    static void store_elsewhere(float* p, Float x) { store(p, x); }
  };
  struct Some {
    std::int64_t n;
    Float load(const float* p) const {
      float lanes[4] = {};
      for (std::int64_t i = 0; i < n; ++i) lanes[i] = p[i];
      return vld1q_f32(lanes);
    }
    void store_elsewhere(float* p, Float x) const { store(p, x); }
    void store(float* p, Float x) const {
      float lanes[4];
      vst1q_f32(lanes, x);
      for (std::int64_t i = 0; i < n; ++i) p[i] = lanes[i];
    }
  };
  static void store_lanes(float* p, int from, int to, Float x) {
    float lanes[4];
    vst1q_f32(lanes, x);
    for (int i = from; i < to; ++i) p[i] = lanes[i];
  }
  static Float merge_lanes(Float x, const float* p, int from, int to) {
    float lanes[4];
    vst1q_f32(lanes, x);
    for (int i = from; i < to; ++i) lanes[i] = p[i];
    return vld1q_f32(lanes);
  }
  /// The lanes from one on.
  static uint32x4_t from(int lane) {
    const std::int32_t lanes[4] = {0, 1, 2, 3};
    return vcgeq_s32(vld1q_s32(lanes), vdupq_n_s32(lane));
  }
  static Float blend(Float a, float b, uint32x4_t lanes) { return vbslq_f32(lanes, set(b), a); }
  static Some first(std::int64_t n) { return {n}; }
  static Float set(float x) { return vdupq_n_f32(x); }
  static Float add(Float a, Float b) { return vaddq_f32(a, b); }
  static Float sub(Float a, Float b) { return vsubq_f32(a, b); }
  static Float mul(Float a, Float b) { return vmulq_f32(a, b); }
  static Float div(Float a, Float b) { return vdivq_f32(a, b); }
  static Float sqrt(Float a) { return vsqrtq_f32(a); }
  static Float fma(Float a, Float b, Float c) { return vfmaq_f32(c, a, b); }
  static unsigned bits(uint32x4_t mask) {
    return (vgetq_lane_u32(mask, 0) & 1u) | (vgetq_lane_u32(mask, 1) & 2u) |
           (vgetq_lane_u32(mask, 2) & 4u) | (vgetq_lane_u32(mask, 3) & 8u);
  }
  static unsigned beyond(Float rho, Float trust, Float m) {
    return bits(vbicq_u32(vcgtq_f32(rho, trust), vceqzq_f32(m)));
  }
  static void end_stores() {}
  static bool has_nan(Float x) { return bits(vmvnq_u32(vceqq_f32(x, x))) != 0; }
  static void fetch_to_write(const char* at) { asm volatile("prfm pstl1keep, %0" : : "Q"(*at)); }
};

#else

struct Vector {
  using Float = float;
  static constexpr int kLanes = 1;
  struct All {
    static Float load(const float* p) { return *p; }
    static void store(float* p, Float x) { *p = x; }
    static void store_elsewhere(float* p, Float x) { store(p, x); }
  };
  static void store_lanes(float* p, int, int, Float x) { *p = x; }
  static Float merge_lanes(Float, const float* p, int, int) { return *p; }
  static bool from(int lane) { return lane == 0; }
  static Float blend(Float a, float b, bool takes) { return takes ? b : a; }
  static All first(std::int64_t) { return {}; }
  static Float set(float x) { return x; }
  static Float add(Float a, Float b) { return a + b; }
  static Float sub(Float a, Float b) { return a - b; }
  static Float mul(Float a, Float b) { return a * b; }
  static Float div(Float a, Float b) { return a / b; }
  static Float sqrt(Float a) { return std::sqrt(a); }
  static Float fma(Float a, Float b, Float c) { return a * b + c; }
  static unsigned beyond(Float rho, Float trust, Float m) { return rho > trust && m != 0.0f; }
  static void end_stores() {}
  static bool has_nan(Float x) { return x != x; }
  static void fetch_to_write(const char* at) {
#if defined(__x86_64__)
    asm volatile("prefetcht0 %0" : : "m"(*at));
#else
    (void)at;
#endif
  }
};

#endif

}  // namespace

RowKernel scalar_kernel() { return {&Kernel<Vector>::run_rows, Vector::kLanes}; }

}  // namespace gs::adam
