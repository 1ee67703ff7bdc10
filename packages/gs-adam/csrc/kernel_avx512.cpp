// SPDX-License-Identifier: Apache-2.0
// The row kernel sixteen values at a time.
#include <immintrin.h>

#include "kernel_body.hpp"

namespace gs::adam {
namespace {

struct Vector {
  using Float = __m512;
  static constexpr int kLanes = 16;
  struct All {
    static Float load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, Float x) { _mm512_storeu_ps(p, x); }
  };
  struct Some {
    __mmask16 mask;
    Float load(const float* p) const { return _mm512_maskz_loadu_ps(mask, p); }
    void store(float* p, Float x) const { _mm512_mask_storeu_ps(p, mask, x); }
  };
  static Some first(std::int64_t n) { return {static_cast<__mmask16>((1u << n) - 1u)}; }
  static Float set(float x) { return _mm512_set1_ps(x); }
  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
  // The unmasked intrinsic reads an uninitialised register in gcc 12's header.
  static Float sqrt(Float a) { return _mm512_maskz_sqrt_ps(0xffff, a); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static unsigned beyond(Float rho, Float trust, Float m) {
    const __mmask16 far = _mm512_cmp_ps_mask(rho, trust, _CMP_GT_OQ);
    return _mm512_mask_cmp_ps_mask(far, m, _mm512_setzero_ps(), _CMP_NEQ_UQ);
  }
  static unsigned non_finite(Float g) {
    return _mm512_cmp_ps_mask(_mm512_sub_ps(g, g), _mm512_setzero_ps(), _CMP_NEQ_UQ);
  }
};

}  // namespace

std::int64_t run_rows_avx512(const Job& job, std::int64_t first, std::int64_t last) {
  return Kernel<Vector>::run_rows(job, first, last);
}

}  // namespace gs::adam
