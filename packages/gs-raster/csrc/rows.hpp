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

/// n rows; row i is in slot slots[i] of every table. Device memory.
struct Rows {
  std::int64_t n;
  const std::int32_t* slots;      // (n,), or none: row i is in slot i
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
  const std::int32_t* places;  // (n,), or none: row i to place i
  bool add;                    // to what is there; else written over it
  Column<float> means, scales, quats, opacities, sh0, shN;
};

}  // namespace gs::raster
