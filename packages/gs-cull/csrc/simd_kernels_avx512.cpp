// SPDX-License-Identifier: Apache-2.0
#include "simd_kernels.hpp"

namespace {
#include "simd_kernels.inl"
}  // namespace

gs::cull::SimdKernels gs::cull::simd_kernels_avx512() { return {load, filter, common_bits}; }
