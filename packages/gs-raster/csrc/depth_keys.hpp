// SPDX-License-Identifier: Apache-2.0
// What the order of splats by depth begins with.
#pragma once

#include "splat.hpp"

namespace gs::raster {

/// The depth of splats that do not show; their order does not matter.
constexpr std::uint32_t kNotShown = 0xffffffffu;

/// Depths as integers of the same order, each splat's number, and counters at 0. Device memory.
struct DepthKeys {
  std::uint32_t* depths;  // (n,); none: nothing is wanted
  std::int32_t* numbers;  // (n,)
  std::int32_t* n_long;   // (1,) of break_ties()
  std::uint64_t* total;   // (1,) of count_instances(), or none
};

#if defined(__CUDACC__)

/// Writes what belongs to splat i.
__device__ __forceinline__ void put_depth_key(const DepthKeys& keys, std::int64_t i,
                                              std::uint32_t columns, float depth) {
  if (i == 0) {
    *keys.n_long = 0;
    if (keys.total != nullptr) *keys.total = 0;
  }
  // Floats above 0 are ordered as their bits.
  keys.depths[i] = columns == 0 ? kNotShown : __float_as_uint(depth);
  keys.numbers[i] = static_cast<std::int32_t>(i);
}

#endif

}  // namespace gs::raster
