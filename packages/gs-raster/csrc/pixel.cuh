// SPDX-License-Identifier: Apache-2.0
// What one splat does to one pixel, and the tile that a block has. Forward and backward pass use
// the same instructions, so that both take the same decisions.
#pragma once

#include "reach.cuh"
#include "splat.hpp"

namespace gs::raster {

constexpr int kTilePixels = kTile * kTile;
constexpr int kWarps = kTilePixels / 32;  // each has two rows of the tile's pixels
constexpr unsigned kFullMask = 0xffffffffu;

/// A splat as blending reads it, and which of the tile's warps it can reach.
struct TileSplat {
  float4 mean;   // x, y, opacity, depth
  float4 conic;  // xx, xy, yy, warps as the bits of an integer
  float4 color;  // red, green, blue, number of the splat as the bits of an integer
};

__device__ __forceinline__ TileSplat load_splat(const Splat* splats, int i, float top) {
  const float4* const words = reinterpret_cast<const float4*>(splats + i);
  TileSplat splat{words[0], words[1], words[2]};
  const Reach reach = make_reach(splat.conic.x, splat.conic.y, splat.conic.z, splat.mean.z);
  // Row r of pixels is reached for |r + 0.5 + top - y| <= reach.y; a pixel more at both ends.
  const float middle = splat.mean.y - top;
  const bool all = !(reach.determinant > 0.0f) || !(reach.y < 1e6f);
  const int first = all ? 0 : static_cast<int>(fmaxf(middle - reach.y - 1.5f, 0.0f));
  const int last = all ? kTile - 1 : static_cast<int>(fminf(middle + reach.y + 0.5f, kTile - 1.0f));
  const int end_bit = (last >> 1) + 1, begin_bit = min(first >> 1, kWarps);
  const unsigned warps =
      end_bit > begin_bit ? ((1u << end_bit) - 1u) & ~((1u << begin_bit) - 1u) : 0u;
  splat.conic.w = __uint_as_float(warps);
  splat.color.w = __int_as_float(i);
  return splat;
}

/// alpha before it is clamped, or 0 where the pixel is not drawn.
__device__ __forceinline__ float peak_at(const float4& mean, const float4& conic, float x,
                                         float y) {
  const float dx = __fsub_rn(mean.x, x), dy = __fsub_rn(mean.y, y);
  const float squares =
      __fmaf_rn(__fmul_rn(conic.x, dx), dx, __fmul_rn(__fmul_rn(conic.z, dy), dy));
  const float sigma = __fmaf_rn(0.5f, squares, __fmul_rn(__fmul_rn(conic.y, dx), dy));
  const float peak = __fmul_rn(mean.z, __expf(-sigma));
  return sigma >= 0.0f && fminf(peak, kMaxAlpha) >= kAlphaThreshold ? peak : 0.0f;
}

/// The tile of a block, and the pixel of a thread.
struct TilePixel {
  int tile;         // of the rectangle's grid
  int left, top;    // the tile's first pixel in the view
  int x, y;         // the thread's pixel in the view
  bool inside;      // of the rectangle
  std::int64_t at;  // place of the pixel in the rectangle

  __device__ __forceinline__ TilePixel(const Rect& rect, const Grid& grid)
      : tile(static_cast<int>(blockIdx.x)),
        left((grid.column0 + tile % grid.columns()) * kTile),
        top((grid.row0 + tile / grid.columns()) * kTile),
        x(left + static_cast<int>(threadIdx.x) % kTile),
        y(top + static_cast<int>(threadIdx.x) / kTile),
        inside(x >= rect.x0 && x < rect.x1 && y >= rect.y0 && y < rect.y1),
        at(static_cast<std::int64_t>(y - rect.y0) * rect.width() + (x - rect.x0)) {}
};

}  // namespace gs::raster
