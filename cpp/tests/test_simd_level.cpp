// SPDX-License-Identifier: Apache-2.0
#define GS_WITH_AVX2 1
#define GS_WITH_AVX512 1
#include "check.hpp"
#include "gs/simd_level.hpp"

int main() {
  unsetenv("GS_SIMD");
  const gs::Simd best = gs::detect_simd();
  CHECK(gs::chosen_simd() == best);
  setenv("GS_SIMD", "scalar", 1);
  CHECK(gs::chosen_simd() == gs::Simd::kScalar);
  setenv("GS_SIMD", gs::simd_name(best), 1);
  CHECK(gs::chosen_simd() == best);
  setenv("GS_SIMD", "sse9", 1);
  CHECK_THROWS(gs::Error, "GS_SIMD must be scalar, avx2 or avx512, got sse9", gs::chosen_simd());
  if (best < gs::Simd::kAvx512) {
    setenv("GS_SIMD", "avx512", 1);
    CHECK_THROWS(gs::Error, "GS_SIMD must be at most", gs::chosen_simd());
  }
}
