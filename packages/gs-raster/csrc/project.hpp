// SPDX-License-Identifier: Apache-2.0
// Rows to splats on a CUDA device, and gradients of splats to those of rows.
#pragma once

#include "blend.hpp"
#include "depth_keys.hpp"
#include "gs/cuda/stream_view.hpp"
#include "rows.hpp"
#include "splat.hpp"
#include "view.hpp"

namespace gs::raster {

/// Projects rows into a view with colours of harmonics up to sh_degree (EWA splatting, Zwicker et
/// al. 2001; semantics of gsplat 1.5.3). A row that is not finite does not show, nor does one of a
/// faulty view.
///
/// splats: (n,), every word of every one is written; radii: (n, 2) half extents in pixels, 0 where
/// a row does not show, or none; keys: at least n are written, or none.
/// Enqueued on `stream` of the current device; does not synchronise. Throws gs::CudaError.
void project(const Rows& rows, const View& view, const Options& options, int sh_degree,
             Splat* splats, std::int32_t* radii, const DepthKeys& keys, cuda::StreamView stream);

/// The gradients of rows from those of their splats. Rows that do not show have gradient 0: it is
/// written, unless gradients are added.
///
/// splats: as project() wrote them for the same rows, view and options. statistics: added to.
void project_backward(const Rows& rows, const View& view, const Options& options, int sh_degree,
                      const Splat* splats, const SplatGradients& gradients, const RowGradients& out,
                      const Statistics& statistics, cuda::StreamView stream);

}  // namespace gs::raster
