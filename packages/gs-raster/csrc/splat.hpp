// SPDX-License-Identifier: Apache-2.0
// Splats: rows projected into one view. What stages, and ranks, hand to each other.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define GS_RASTER_HD __host__ __device__ __forceinline__
#else
#define GS_RASTER_HD inline
#endif

namespace gs::raster {

constexpr int kTile = 16;  // pixels

// A pixel's alpha below the first counts as nothing, alpha is at most the second, and the splat
// that would bring the transmittance to the third or below ends the pixel (gsplat 1.5.3).
constexpr float kAlphaThreshold = 1.0f / 255.0f;
constexpr float kMaxAlpha = 0.999f;
constexpr float kMinTransmittance = 1e-4f;
// Standard deviations that a splat spans at most.
constexpr float kMaxExtent = 3.33f;

/// One splat, 12 words. Crosses from Python as a row of an (R, 12) int32 array.
struct alignas(16) Splat {
  float x, y;        // mean, pixels of the whole view
  float opacity;     // in [0, 1], compensated when antialiased
  float depth;       // camera z
  float xx, xy, yy;  // upper triangle of the conic, 1 / pixel^2
  // Tiles of the whole view's grid that the splat's box touches, first | end << 16 on each axis;
  // both are 0 where the row does not show.
  std::uint32_t columns;
  float red, green, blue;
  std::uint32_t rows;
};
static_assert(sizeof(Splat) == 48, "splats are 12 words");
constexpr int kSplatWords = 12;

/// d loss / d splat. Crosses from Python as a row of an (R, 12) float32 array.
struct alignas(16) SplatGradient {
  float x, y, xx, xy;
  float yy, opacity, red, green;
  float blue, depth;
  float abs_x, abs_y;  // sums over pixels of |d loss / d mean|
};
static_assert(sizeof(SplatGradient) == 48, "gradients of splats are 12 words");

/// Pixels x0 <= x < x1, y0 <= y < y1 of a view.
struct Rect {
  int x0, y0, x1, y1;
  GS_RASTER_HD int width() const { return x1 - x0; }
  GS_RASTER_HD int height() const { return y1 - y0; }
  GS_RASTER_HD bool is_empty() const { return x0 >= x1 || y0 >= y1; }
};

/// The tiles of the whole view's grid that a rectangle touches. The grid is the view's, whatever
/// the rectangle, so that a pixel sees the same splats from any rectangle.
struct Grid {
  int column0, row0, column1, row1;
  /// Of an empty rectangle, no tile.
  GS_RASTER_HD explicit Grid(const Rect& rect)
      : column0(rect.x0 / kTile),
        row0(rect.y0 / kTile),
        column1(rect.is_empty() ? column0 : (rect.x1 + kTile - 1) / kTile),
        row1(rect.is_empty() ? row0 : (rect.y1 + kTile - 1) / kTile) {}
  GS_RASTER_HD int columns() const { return column1 - column0; }
  GS_RASTER_HD int rows() const { return row1 - row0; }
  GS_RASTER_HD int n_tiles() const { return columns() * rows(); }
};

}  // namespace gs::raster
