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
  };
  struct Some {
    __m256i mask;
    Float load(const float* p) const { return _mm256_maskload_ps(p, mask); }
    void store(float* p, Float x) const { _mm256_maskstore_ps(p, mask, x); }
  };
  static Some first(std::int64_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane)};
  }
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
  static unsigned non_finite(Float g) {
    return static_cast<unsigned>(_mm256_movemask_ps(
        _mm256_cmp_ps(_mm256_sub_ps(g, g), _mm256_setzero_ps(), _CMP_NEQ_UQ)));
  }
};

}  // namespace

std::int64_t run_rows_avx2(const Job& job, std::int64_t first, std::int64_t last) {
  return Kernel<Vector>::run_rows(job, first, last);
}

}  // namespace gs::adam
