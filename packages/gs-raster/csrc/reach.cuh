// SPDX-License-Identifier: Apache-2.0
// Which pixels a splat can reach: those whose alpha is not below the threshold.
//
// With T = ln(255 opacity), alpha >= 1/255 is the ellipse sigma <= T. The tiles of one row of tiles
// that it meets are contiguous, because an ellipse and a strip are convex (the exact tile test of
// Speedy-Splat, Hanson et al. 2025, section 4). Margins cover the rounding of sigma, so that no
// tile is left out that has a pixel to draw.
#pragma once

#include <cmath>

#include "splat.hpp"

namespace gs::raster {

/// The ellipse around a splat's mean.
struct Reach {
  float size;         // 2 T, below 0 where nothing is reached
  float determinant;  // of the conic; 0 where everything may be reached
  float x, y;         // half extents, pixels
};

/// Of the product of a conic's diagonal over its determinant. Of a longer needle, float32 leaves
/// too few digits of the determinant to say where the needle ends.
constexpr float kLongestNeedle = 1e5f;

/// a c - b^2 to about an ulp (Kahan), where the plain difference loses the digits of a needle.
__device__ __forceinline__ float determinant(float a, float b, float c) {
  const float product = __fmul_rn(b, b);
  const float error = __fmaf_rn(-b, b, product);
  return __fadd_rn(__fmaf_rn(a, c, -product), error);
}

__device__ __forceinline__ Reach make_reach(float a, float b, float c, float opacity) {
  const float t = logf(opacity / kAlphaThreshold) + 1e-3f;
  if (!(t > 0.0f)) return {-1.0f, 1.0f, 0.0f, 0.0f};
  const float area = determinant(a, b, c);
  if (!(a * c < kLongestNeedle * area)) return {INFINITY, 0.0f, INFINITY, INFINITY};
  // sigma is a sum of terms of up to T a c / determinant each.
  const float size = 2.0f * t * (1.0f + 4e-6f * (a * c / area));
  return {size, area, sqrtf(size * c / area), sqrtf(size * a / area)};
}

/// Columns of tiles.
struct Span {
  int begin, end;
  __device__ __forceinline__ int length() const { return max(end - begin, 0); }
};

/// The tiles of a rectangle's grid that one splat reaches, row by row. The same values give the
/// same tiles in every kernel of a file that is compiled without contraction of products and sums.
class TileSpans {
 public:
  __device__ __forceinline__ TileSpans(const Splat& splat, const Grid& grid)
      : box_{max(static_cast<int>(splat.columns & 0xffffu), grid.column0),
             min(static_cast<int>(splat.columns >> 16), grid.column1)},
        row_begin_(max(static_cast<int>(splat.rows & 0xffffu), grid.row0)),
        row_end_(min(static_cast<int>(splat.rows >> 16), grid.row1)),
        reach_(make_reach(splat.xx, splat.xy, splat.yy, splat.opacity)),
        mean_x_(splat.x),
        mean_y_(splat.y),
        slant_(splat.xy / splat.xx),
        width_(1.0f / splat.xx),
        side_y_(splat.xy / splat.yy * reach_.x),
        slack_(0.02f + 2e-6f * (fabsf(splat.x) + fabsf(splat.y) + reach_.x)) {
    if (box_.begin >= box_.end || reach_.size < 0.0f) row_end_ = row_begin_;
  }

  __device__ __forceinline__ int row_begin() const { return row_begin_; }
  __device__ __forceinline__ int row_end() const { return row_end_; }

  __device__ __forceinline__ Span operator[](int row) const {
    // Written so that what is not a number keeps the whole box.
    if (!(reach_.determinant > 0.0f) || !(reach_.size < 3e38f)) return box_;
    const float low = static_cast<float>(row * kTile) + 0.5f - mean_y_ - slack_;
    const float high = static_cast<float>(row * kTile + kTile - 1) + 0.5f - mean_y_ + slack_;
    if (low > reach_.y || high < -reach_.y) return {box_.begin, box_.begin};
    // The rightmost point of the ellipse is at -side_y_, the leftmost at side_y_.
    const float right = edge(fminf(fmaxf(-side_y_, low), high), 1.0f) + slack_;
    const float left = edge(fminf(fmaxf(side_y_, low), high), -1.0f) - slack_;
    // First and last pixel centres of a tile. Clamped before the conversion.
    const float first = ceilf((mean_x_ + left - (kTile - 0.5f)) / kTile);
    const float last = floorf((mean_x_ + right - 0.5f) / kTile);
    const float begin = static_cast<float>(box_.begin), end = static_cast<float>(box_.end);
    return {first > begin ? static_cast<int>(fminf(first, end)) : box_.begin,
            last < end - 1.0f ? static_cast<int>(fmaxf(last, begin - 1.0f)) + 1 : box_.end};
  }

 private:
  /// x on the ellipse at y, both from the mean, on the side of `sign`.
  __device__ __forceinline__ float edge(float y, float sign) const {
    const float inside = reach_.size * width_ - reach_.determinant * (y * width_) * (y * width_);
    return -slant_ * y + sign * sqrtf(fmaxf(inside, 0.0f));
  }

  Span box_;
  int row_begin_, row_end_;
  Reach reach_;
  float mean_x_, mean_y_;
  float slant_, width_;  // xy / xx and 1 / xx
  float side_y_;         // y where the ellipse is furthest left, from the mean
  float slack_;          // pixels, for the rounding of the bounds themselves
};

}  // namespace gs::raster
