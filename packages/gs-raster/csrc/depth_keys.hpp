// SPDX-License-Identifier: Apache-2.0
// What the order of splats by depth begins with.
#pragma once

#include "sort_job.hpp"

namespace gs::raster {

/// The depth of splats that do not show; their order does not matter.
constexpr std::uint32_t kNotShown = 0xffffffffu;

/// Depths as integers of the same order, each splat's number, counters at 0, and what is sorted.
/// Device memory.
struct DepthKeys {
  std::int64_t n;         // keys beyond the splats are those of splats that do not show
  std::uint32_t* depths;  // (n,)
  std::int32_t* numbers;  // (n,)
  std::int32_t* n_long;   // (1,) of break_ties()
  SortJob job;
  SortJob* place_of_job;  // (1,); none: it and the total are left alone
};

#if defined(__CUDACC__)

/// Writes what belongs to splat i.
__device__ __forceinline__ void put_depth_key(const DepthKeys& keys, std::int64_t i,
                                              std::uint32_t columns, float depth) {
  if (i == 0) {
    *keys.n_long = 0;
    if (keys.place_of_job != nullptr) {
      *keys.place_of_job = keys.job;
      *keys.job.total = 0;
    }
  }
  // Floats above 0 are ordered as their bits.
  keys.depths[i] = columns == 0 ? kNotShown : __float_as_uint(depth);
  keys.numbers[i] = static_cast<std::int32_t>(i);
}

#endif

}  // namespace gs::raster
