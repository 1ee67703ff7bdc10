// SPDX-License-Identifier: Apache-2.0
// The row kernel eight values at a time.
#include <immintrin.h>

#include "kernel_body.hpp"

namespace gs::adam {
namespace {

struct Vector {
  using Float = __m256;
  static constexpr int kLanes = 8;
  struct All {
    static Float load(const float* p) { return _mm256_loadu_ps(p); }
    static void store(float* p, Float x) { _mm256_storeu_ps(p, x); }
    static void store_elsewhere(float* p, Float x) { store(p, x); }
  };
  struct Some {
    unsigned n;
    Float load(const float* p) const {
      return _mm256_maskload_ps(p, between(0, static_cast<int>(n)));
    }
    void store_elsewhere(float* p, Float x) const { store(p, x); }
    // In pieces, for a masked store holds up every later load from within its full width.
    void store(float* p, Float x) const {
      __m128 low = _mm256_castps256_ps128(x);
      if ((n & 4u) != 0) {
        _mm_storeu_ps(p, low);
        low = _mm256_extractf128_ps(x, 1);
        p += 4;
      }
      if ((n & 2u) != 0) {
        _mm_storel_pi(reinterpret_cast<__m64*>(p), low);
        low = _mm_movehl_ps(low, low);
        p += 2;
      }
      if ((n & 1u) != 0) _mm_store_ss(p, low);
    }
  };
  /// Lanes [from, to) of a vector at p; nothing else is written.
  static void store_lanes(float* p, int from, int to, Float x) {
    _mm256_maskstore_ps(p, between(from, to), x);
  }
  static __m256i between(int from, int to) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_and_si256(_mm256_cmpgt_epi32(lane, _mm256_set1_epi32(from - 1)),
                            _mm256_cmpgt_epi32(_mm256_set1_epi32(to), lane));
  }
  /// x, but lanes [from, to) of a vector at p; nothing else is read.
  static Float merge_lanes(Float x, const float* p, int from, int to) {
    const __m256i lanes = between(from, to);
    return _mm256_blendv_ps(x, _mm256_maskload_ps(p, lanes), _mm256_castsi256_ps(lanes));
  }
  /// The lanes from one on.
  static __m256 from(int lane) { return _mm256_castsi256_ps(between(lane, kLanes)); }
  static Float blend(Float a, float b, __m256 lanes) { return _mm256_blendv_ps(a, set(b), lanes); }
  static Some first(std::int64_t n) { return {static_cast<unsigned>(n)}; }
  static Float set(float x) { return _mm256_set1_ps(x); }
  static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
  static Float sqrt(Float a) { return _mm256_sqrt_ps(a); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static unsigned beyond(Float rho, Float trust, Float m) {
    const Float far = _mm256_cmp_ps(rho, trust, _CMP_GT_OQ);
    const Float moves = _mm256_cmp_ps(m, _mm256_setzero_ps(), _CMP_NEQ_UQ);
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_and_ps(far, moves)));
  }
  static void end_stores() {}
  static bool has_nan(Float x) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0;
  }
  static void fetch_to_write(const char* at) { asm volatile("prefetchw %0" : : "m"(*at)); }
};

}  // namespace

RowKernel avx2_kernel() { return {&Kernel<Vector>::run_rows, Vector::kLanes}; }

}  // namespace gs::adam
