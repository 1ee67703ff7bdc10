// SPDX-License-Identifier: Apache-2.0
// Bounds of blocks of rows, and the test that a view may see a row of a block.
#pragma once

#include "row_test.hpp"

namespace gs::cull {

/// What a block's rows share. Rows that are not finite have no part in it.
struct Bounds {
  float lower[3], upper[3];  // of the means; lower > upper for a block of no finite row
  float scale;               // at least every scale, no logarithm
};

/// Arrays of bounds, host or device.
struct BoundsArrays {
  float* lower;              // (blocks, 3)
  float* upper;              // (blocks, 3)
  float* scale;              // (blocks,)
  const float* slack;        // (blocks, 2) how far means and scales may have moved since the fit
  std::int32_t* not_finite;  // (blocks,) rows without a finite mean or scale
};

GS_CULL_HD Bounds no_bounds() {
  return {{INFINITY, INFINITY, INFINITY}, {-INFINITY, -INFINITY, -INFINITY}, 0};
}

GS_CULL_HD void join(Bounds* a, const Bounds& b) {
  for (int c = 0; c < 3; ++c) {
    a->lower[c] = detail::smaller(a->lower[c], b.lower[c]);
    a->upper[c] = detail::larger(a->upper[c], b.upper[c]);
  }
  a->scale = detail::larger(a->scale, b.scale);
}

/// Adds row i; false when it is not finite. `options` must not move anything.
GS_CULL_HD bool add_row(const Geometry& rows, std::int64_t i, const Options& options,
                        Bounds* bounds) {
  Row row;
  if (!load_place(rows, i, options, &row)) return false;
  join(bounds, {{row.mean[0], row.mean[1], row.mean[2]},
                {row.mean[0], row.mean[1], row.mean[2]},
                row.s_max});
  return true;
}

/// Bounds of block b grown by its slack and by what `options` lets the scales move. (What it lets
/// the means move is in the planes.)
GS_CULL_HD Bounds grown_bounds(const BoundsArrays& arrays, std::int64_t b, const Options& options) {
  Bounds bounds;
  const float move = arrays.slack[2 * b];
  for (int c = 0; c < 3; ++c) {
    bounds.lower[c] = arrays.lower[3 * b + c] - move;
    bounds.upper[c] = arrays.upper[3 * b + c] + move;
  }
  const float grow = arrays.slack[2 * b + 1] + options.move_scales;
  const float scale = arrays.scale[b];
  bounds.scale = (options.activated ? scale + grow : scale * expf(grow)) * (1 + 4 * kRelative);
  return bounds;
}

/// False when passes_planes() fails for every row within the bounds.
GS_CULL_HD bool may_show(const Camera& camera, const Bounds& bounds) {
  if (!(bounds.lower[0] <= bounds.upper[0])) return false;
  float norm1 = 0;
  for (int c = 0; c < 3; ++c)
    norm1 += detail::larger(fabsf(bounds.lower[c]), fabsf(bounds.upper[c]));
  for (int i = 0; i < camera.n_planes; ++i) {
    const Plane& plane = camera.planes[i];
    float distance = plane.d + plane.k * bounds.scale;
    for (int c = 0; c < 3; ++c)
      distance += plane.n[c] * (plane.n[c] > 0 ? bounds.upper[c] : bounds.lower[c]);
    if (distance + 2 * kPlaneMargin * (plane.n_abs * norm1 + plane.d_abs) < 0) return false;
  }
  return true;
}

}  // namespace gs::cull
