// SPDX-License-Identifier: Apache-2.0
#include "simd_kernels.hpp"

#include "gs/simd_level.hpp"

namespace gs::cull {

namespace {

SimdKernels choose() {
  switch (chosen_simd()) {
#if defined(GS_WITH_AVX512)
    case Simd::kAvx512:
      return simd_kernels_avx512();
#endif
#if defined(GS_WITH_AVX2)
    case Simd::kAvx2:
      return simd_kernels_avx2();
#endif
    default:
      return simd_kernels_scalar();
  }
}

}  // namespace

const SimdKernels& simd_kernels() {
  static const SimdKernels kernels = choose();
  return kernels;
}

}  // namespace gs::cull
