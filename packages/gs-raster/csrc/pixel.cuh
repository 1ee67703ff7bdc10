// SPDX-License-Identifier: Apache-2.0
// What one splat does to one pixel, and the tile that a block has. Forward and backward pass use
// the same instructions, so that both take the same decisions.
#pragma once

#include "reach.cuh"
#include "splat.hpp"
#include "warp.cuh"

namespace gs::raster {

constexpr int kTilePixels = kTile * kTile;
constexpr int kWarps = kTilePixels / 32;
// The pixels of a warp: nearly square, so that a small splat reaches few warps.
constexpr int kWarpColumns = 8, kWarpRows = 4;
constexpr int kWarpsAcross = kTile / kWarpColumns;

/// A splat as blending reads it, and which of the tile's warps it can reach.
struct TileSplat {
  float4 mean;   // x, y, opacity, depth
  float4 conic;  // xx, xy, yy, warps as the bits of an integer
  float4 color;  // red, green, blue, number of the splat as the bits of an integer
};

/// Bits first to last of `size` pixels each that [middle - reach, middle + reach] meets, one pixel
/// more at both ends; all for a reach that is not a number.
template <int kSize>
__device__ __forceinline__ unsigned bits_reached(float middle, float reach) {
  constexpr int kBits = kTile / kSize;
  if (!(reach < 1e6f)) return (1u << kBits) - 1u;
  const int first = static_cast<int>(fmaxf(middle - reach - 1.5f, 0.0f)) / kSize;
  const int end = static_cast<int>(fminf(middle + reach + 0.5f + kSize, kTile)) / kSize;
  return end > first ? (1u << end) - (1u << first) : 0u;
}

/// Splat i for the tile whose first pixel is (left, top).
__device__ __forceinline__ TileSplat load_splat(const Splat* splats, int i, int left, int top) {
  static_assert(kWarpsAcross == 2, "a bit of rows becomes two neighbouring bits of warps");
  const float4* const words = reinterpret_cast<const float4*>(splats + i);
  TileSplat splat{words[0], words[1], words[2]};
  const Reach reach = make_reach(splat.conic.x, splat.conic.y, splat.conic.z, splat.mean.z);
  unsigned warps = 0;
  const unsigned across =
      bits_reached<kWarpColumns>(splat.mean.x - static_cast<float>(left), reach.x);
  const unsigned down = bits_reached<kWarpRows>(splat.mean.y - static_cast<float>(top), reach.y);
#pragma unroll
  for (int row = 0; row < kTile / kWarpRows; ++row)
    if ((down >> row & 1u) != 0) warps |= across << (kWarpsAcross * row);
  splat.conic.w = __uint_as_float(warps);
  splat.color.w = __int_as_float(i);
  return splat;
}

constexpr int kBatch = kTilePixels;  // splats that a block has at hand

/// They, as one object: an address for each array costs instructions in the innermost loops.
struct Staged {
  float4 means[kBatch], conics[kBatch], colors[kBatch];

  __device__ __forceinline__ void put(int k, const TileSplat& splat) {
    means[k] = splat.mean;
    conics[k] = splat.conic;
    colors[k] = splat.color;
  }
  /// Whether a warp has a pixel in the box of splat k.
  __device__ __forceinline__ bool reaches(int k, int warp) const {
    return (__float_as_uint(conics[k].w) >> warp & 1u) != 0;
  }
};

/// alpha before it is clamped, or 0 where the pixel is not drawn.
__device__ __forceinline__ float peak_at(const float4& mean, const float4& conic, float x,
                                         float y) {
  const float dx = __fsub_rn(mean.x, x), dy = __fsub_rn(mean.y, y);
  const float squares =
      __fmaf_rn(__fmul_rn(conic.x, dx), dx, __fmul_rn(__fmul_rn(conic.z, dy), dy));
  const float sigma = __fmaf_rn(0.5f, squares, __fmul_rn(__fmul_rn(conic.y, dx), dy));
  const float peak = __fmul_rn(mean.z, __expf(-sigma));
  return sigma >= 0.0f && peak >= kAlphaThreshold ? peak : 0.0f;
}

/// The tile of a block, and the pixel of a thread.
struct TilePixel {
  int tile;         // of the rectangle's grid
  int left, top;    // the tile's first pixel in the view
  int x, y;         // the thread's pixel in the view
  bool inside;      // of the rectangle
  std::int64_t at;  // place of the pixel in the rectangle

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }

  __device__ __forceinline__ TilePixel(const Rect& rect, const Grid& grid)
      : tile(static_cast<int>(blockIdx.x)),
        left((grid.column0 + tile % grid.columns()) * kTile),
        top((grid.row0 + tile / grid.columns()) * kTile),
        x(left + warp() % kWarpsAcross * kWarpColumns + lane() % kWarpColumns),
        y(top + warp() / kWarpsAcross * kWarpRows + lane() / kWarpColumns),
        inside(x >= rect.x0 && x < rect.x1 && y >= rect.y0 && y < rect.y1),
        at(static_cast<std::int64_t>(y - rect.y0) * rect.width() + (x - rect.x0)) {}
};

}  // namespace gs::raster
