// SPDX-License-Identifier: Apache-2.0
// The row kernel sixteen values at a time.
#include <immintrin.h>

#include <cstdint>

#include "kernel_body.hpp"

namespace gs::adam {
namespace {

struct Vector {
  using Float = __m512;
  static constexpr int kLanes = 16;
  struct All {
    static Float load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, Float x) { _mm512_storeu_ps(p, x); }
    /// Whole lines go past the caches: read by others later, they need not be read here before.
    static void store_elsewhere(float* p, Float x) {
      if (reinterpret_cast<std::uintptr_t>(p) % 64 == 0) return _mm512_stream_ps(p, x);
      _mm512_storeu_ps(p, x);
    }
  };
  struct Some {
    unsigned n;
    Float load(const float* p) const {
      return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1u), p);
    }
    void store_elsewhere(float* p, Float x) const { store(p, x); }
    // In pieces, for a masked store holds up every later load from within its full width.
    void store(float* p, Float x) const {
      if ((n & 8u) != 0) {
        _mm256_storeu_ps(p, _mm512_castps512_ps256(x));
        x = _mm512_shuffle_f32x4(x, x, 0x0e);
        p += 8;
      }
      __m128 low = _mm512_castps512_ps128(x);
      if ((n & 4u) != 0) {
        _mm_storeu_ps(p, low);
        low = _mm512_castps512_ps128(_mm512_shuffle_f32x4(x, x, 0x01));
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
    _mm512_mask_storeu_ps(p, between(from, to), x);
  }
  static __mmask16 between(int from, int to) {
    return static_cast<__mmask16>((1u << to) - (1u << from));
  }
  /// x, but lanes [from, to) of a vector at p; nothing else is read.
  static Float merge_lanes(Float x, const float* p, int from, int to) {
    return _mm512_mask_loadu_ps(x, between(from, to), p);
  }
  /// The lanes from one on.
  static __mmask16 from(int lane) { return between(lane, kLanes); }
  static Float blend(Float a, float b, __mmask16 lanes) {
    return _mm512_mask_mov_ps(a, lanes, set(b));
  }
  static Some first(std::int64_t n) { return {static_cast<unsigned>(n)}; }
  static Float set(float x) { return _mm512_set1_ps(x); }
  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
  static Float sqrt(Float a) { return _mm512_sqrt_ps(a); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static unsigned beyond(Float rho, Float trust, Float m) {
    const __mmask16 far = _mm512_cmp_ps_mask(rho, trust, _CMP_GT_OQ);
    return _mm512_mask_cmp_ps_mask(far, m, _mm512_setzero_ps(), _CMP_NEQ_UQ);
  }
  /// What went past the caches is seen by others after this.
  static void end_stores() { _mm_sfence(); }
  static bool has_nan(Float x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }
  static void fetch_to_write(const char* at) { asm volatile("prefetchw %0" : : "m"(*at)); }
};

}  // namespace

RowKernel avx512_kernel() { return {&Kernel<Vector>::run_rows, Vector::kLanes}; }

}  // namespace gs::adam
