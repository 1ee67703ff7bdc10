// SPDX-License-Identifier: Apache-2.0
// Marking listed rows on a CUDA device.
#pragma once

#include <cstdint>

#include "gs/cuda/stream_view.hpp"
#include "row_test.hpp"

namespace gs::cull {

/// Views as gsplat gives them.
struct ViewArrays {
  const float* viewmats;  // (B, 4, 4), device
  const float* Ks;        // (B, 3, 3), device
  const float* sizes;     // (B, 6) width, height and rectangle, on the host
};

/// marks: (n,) whether row ids[i] shows in one of the views whose bits are set in row i of mask
/// (n, words): for each row and view the decision of mark_visible(). Bits beyond the last view
/// count for nothing; a faulty view sees no row.
///
/// One kernel per 128 views, enqueued on `stream` of the current device. Needs no workspace, does
/// not synchronise, may be captured. Pointers are device memory that must stay until the stream
/// has passed; `views.sizes` is read before this returns. Throws gs::CudaError.
void mark_rows(const Geometry& geometry, const std::int32_t* ids, const std::uint32_t* mask,
               std::int64_t n, const ViewArrays& views, int n_views, const Options& options,
               bool* marks, cuda::StreamView stream);

}  // namespace gs::cull
