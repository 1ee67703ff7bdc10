// SPDX-License-Identifier: Apache-2.0
// What a projection reads of a view, and the rules by which rows show.
#pragma once

namespace gs::raster {

/// How rows are projected (gsplat's arguments of the same names).
struct Options {
  bool antialiased;  // opacity times sqrt(det(C) / det(C + eps2d I))
  float eps2d;       // pixel^2, above 0
  float near_plane;  // rows show for near <= z <= far
  float far_plane;
  float radius_clip;  // pixels: rows of at most this extent on both axes do not show
};

/// One posed pinhole image. The matrices are in device memory, row-major.
struct View {
  const float* viewmat;  // (4, 4) world to camera; x right, y down, z forward
  const float* K;        // (3, 3) pixels
  int width, height;
};

}  // namespace gs::raster
