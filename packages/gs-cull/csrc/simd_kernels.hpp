// SPDX-License-Identifier: Apache-2.0
// The loops that are compiled once per instruction set: the first look at a tile of rows, a
// superset of what load_place() and passes_planes() let through, and the bits that two columns
// share. This header holds PODs and declarations only.
#pragma once

#include <cstdint>

namespace gs::cull {

constexpr int kTile = 512;

/// A tile as arrays. `s` is at least the largest scale. A row whose `odd` is set (not finite, or a
/// scale near overflow) has no meaningful values here and is for load_place() to judge.
struct Tile {
  alignas(64) float x[kTile], y[kTile], z[kTile], s[kTile];
  alignas(64) std::uint8_t odd[kTile];
  float norm1_max;  // of the rows that are not odd
};

/// A Plane whose d holds the margin for a whole tile.
struct TilePlane {
  float nx, ny, nz, d, k;
};

struct SimdKernels {
  /// means, scales: (n, 3), n <= kTile.
  void (*load)(const float* means, const float* scales, int n, bool activated, float move_scales,
               Tile* tile);
  /// keep: (n,) 1 where no plane rules the row out; undefined for odd rows.
  void (*filter)(const Tile* tile, int n, const TilePlane* planes, int n_planes,
                 std::uint8_t* keep);
  /// Bits set in both a and b: (n,) each.
  std::int64_t (*common_bits)(const std::uint64_t* a, const std::uint64_t* b, int n);
};

SimdKernels simd_kernels_scalar();
SimdKernels simd_kernels_avx2();
SimdKernels simd_kernels_avx512();

/// Those of the instruction set in use: the processor's best, or GS_SIMD's.
const SimdKernels& simd_kernels();

}  // namespace gs::cull
