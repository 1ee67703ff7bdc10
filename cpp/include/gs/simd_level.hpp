// SPDX-License-Identifier: Apache-2.0
// Which instruction set a module's kernels use, decided once per module at run time.
#pragma once

#include <cstdlib>
#include <string>

#include "gs/error.hpp"

namespace gs {

enum class Simd { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

inline const char* simd_name(Simd level) {
  switch (level) {
    case Simd::kAvx512:
      return "avx512";
    case Simd::kAvx2:
      return "avx2";
    default:
      return "scalar";
  }
}

/// The highest level that this processor executes and this module was compiled with.
inline Simd detect_simd() {
#if defined(GS_WITH_AVX512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return Simd::kAvx512;
#endif
#if defined(GS_WITH_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2"))
    return Simd::kAvx2;
#endif
  return Simd::kScalar;
}

/// detect_simd(), or the level named by the environment variable GS_SIMD (scalar, avx2, avx512).
/// Throws gs::Error when the name is unknown or the level is not available here.
inline Simd chosen_simd() {
  const Simd best = detect_simd();
  const char* forced = std::getenv("GS_SIMD");
  if (forced == nullptr || *forced == '\0') return best;
  for (Simd level : {Simd::kScalar, Simd::kAvx2, Simd::kAvx512}) {
    if (std::string(forced) != simd_name(level)) continue;
    GS_CHECK(level <= best, "GS_SIMD must be at most ", simd_name(best),
             " on this processor and build, got ", forced);
    return level;
  }
  GS_CHECK(false, "GS_SIMD must be scalar, avx2 or avx512, got ", forced);
  return best;
}

}  // namespace gs
