// SPDX-License-Identifier: Apache-2.0
// The vectorised first look at a tile of rows: a superset of what load_place() and passes_planes()
// let through. Compiled once per instruction set, so this header holds PODs and declarations only.
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

struct PrefilterKernels {
  /// means, scales: (n, 3), n <= kTile.
  void (*load)(const float* means, const float* scales, int n, bool activated, float move_scales,
               Tile* tile);
  /// keep: (n,) 1 where no plane rules the row out; undefined for odd rows.
  void (*filter)(const Tile* tile, int n, const TilePlane* planes, int n_planes,
                 std::uint8_t* keep);
};

PrefilterKernels prefilter_scalar();
PrefilterKernels prefilter_avx2();
PrefilterKernels prefilter_avx512();

}  // namespace gs::cull
