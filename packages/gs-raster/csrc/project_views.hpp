// SPDX-License-Identifier: Apache-2.0
// Rows of several views to splats that travel, and gradients of splats to those of rows, in one
// call each: ranks of a group project their rows into the views that others draw.
#pragma once

#include <cstdint>
#include <vector>

#include "project.hpp"

namespace gs::raster {

/// What one view sees of rows that are in tables, and where its splats go. Device memory.
struct ViewSplats {
  Rows rows;
  View view;
  Options options;
  int sh_degree;
  std::int64_t room;    // records, at least as many as rows
  Splat* splats;        // (room,)
  std::int32_t* keys;   // (room,)
  std::int32_t* radii;  // (n, 2), or none
};

/// Projects the rows of each view, see project(). Behind them come empty records: 0, of key -1.
///
/// keys: by slot of the geometry; what `ViewSplats::keys` get.
/// Enqueued on `stream` of the current device; does not synchronise. Throws gs::CudaError.
void project_views(const std::vector<ViewSplats>& views, const std::int32_t* keys,
                   cuda::StreamView stream);

/// What comes back to one view.
struct ViewGradients {
  const SplatGradient* gradients;  // (n,)
  RowGradients out;
  Statistics statistics;
};

/// The gradients of rows from those of the splats that project_views() made of them, view after
/// view, see project_backward(). of_views: one for each view.
void project_views_backward(const std::vector<ViewSplats>& views,
                            const std::vector<ViewGradients>& of_views, cuda::StreamView stream);

}  // namespace gs::raster
