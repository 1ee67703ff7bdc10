// SPDX-License-Identifier: Apache-2.0
// Rows of Gaussians in the tables that they live in.
#pragma once

#include <cstdint>

namespace gs::raster {

/// One attribute: the values of a slot begin at data + slot * pitch.
template <class T>
struct Column {
  T* data;
  std::int64_t pitch;  // floats from one slot to the next
};

/// n rows, each in one slot of the tables of geometry and in one of the tables of harmonics, which
/// may lie elsewhere. Device memory.
struct Rows {
  std::int64_t n;
  const std::int32_t* slots;      // (n,) of means, scales, quats and opacities; none: i of row i
  const std::int32_t* sh_slots;   // (n,) of sh0 and shN, likewise
  Column<const float> means;      // 3
  Column<const float> scales;     // 3, logarithms
  Column<const float> quats;      // 4, w x y z of any length but 0
  Column<const float> opacities;  // 1, logits
  Column<const float> sh0;        // 3
  Column<const float> shN;        // 3 for each of n_bases functions
  int n_bases;                    // 0, 3, 8 or 15
};

/// Where the gradients of rows go: row i to place places[i].
struct RowGradients {
  const std::int32_t* skip;    // (1,) nothing is added or written where this is not 0; or none
  const std::int32_t* places;  // (n,), or none: row i to place i
  bool add;                    // to what is there; else written over it
  Column<float> means, scales, quats, opacities, sh0, shN;
};

/// What density control reads, for each slot of the geometry, of the views that show the row.
/// Device memory.
struct Statistics {
  float* grad2d;              // sum of the norms of d loss / d mean times scale; none: nothing
  float* count;               // views
  float* extents;             // largest radius over the longer side of the image; or none
  const std::int32_t* radii;  // (n, 2) of the rows in this view, as project() writes them
  float scale_x, scale_y;     // 1 / pixel
  bool absgrad;               // norms of the sums of |d loss / d mean|
};

}  // namespace gs::raster
