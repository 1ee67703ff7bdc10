// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>

#include "gs/cuda/check.hpp"
#include "launch.cuh"
#include "project_views.hpp"
#include "row_geometry.cuh"

namespace gs::raster {

namespace {

constexpr int kTogether = 8;  // views of a launch

struct Segment {
  std::int64_t n, room;
  const std::int32_t* slots;  // (n,) or none
  Splat* splats;              // (room,)
  std::int32_t* keys;         // (room,)
};

struct Segments {
  Segment of_view[kTogether];
};

/// Keys of rows, and empty records behind these.
__global__ void __launch_bounds__(kThreads)
    keys_kernel(__grid_constant__ const Segments segments, const std::int32_t* __restrict__ keys) {
  const Segment& segment = segments.of_view[blockIdx.y];
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= segment.room) return;
  if (i < segment.n) {
    segment.keys[i] = __ldg(keys + index_of(segment.slots, i));
    return;
  }
  segment.keys[i] = -1;
  float4* const words = reinterpret_cast<float4*>(segment.splats + i);
  words[0] = words[1] = words[2] = {};
}

Segment segment_of(const ViewSplats& view) {
  return {view.rows.n, view.room, view.rows.slots, view.splats, view.keys};
}

}  // namespace

void project_views(const std::vector<ViewSplats>& views, const std::int32_t* keys,
                   cuda::StreamView stream) {
  for (std::size_t first = 0; first < views.size(); first += kTogether) {
    const std::size_t n = std::min(views.size() - first, std::size_t{kTogether});
    Segments segments{};
    std::int64_t most = 0;
    for (std::size_t k = 0; k < n; ++k) {
      segments.of_view[k] = segment_of(views[first + k]);
      most = std::max(most, views[first + k].room);
    }
    if (most == 0) continue;
    const dim3 blocks(blocks_for(most), static_cast<unsigned>(n));
    keys_kernel<<<blocks, kThreads, 0, stream.get()>>>(segments, keys);
    GS_CUDA_TRY(cudaGetLastError());
  }
  for (const ViewSplats& one : views)
    project(one.rows, one.view, one.options, one.sh_degree, one.splats, one.radii, {}, stream);
}

void project_views_backward(const std::vector<ViewSplats>& views,
                            const std::vector<ViewGradients>& of_views, cuda::StreamView stream) {
  for (std::size_t k = 0; k < views.size(); ++k) {
    const ViewSplats& one = views[k];
    const ViewGradients& back = of_views[k];
    project_backward(one.rows, one.view, one.options, one.sh_degree, one.splats, {back.gradients},
                     back.out, back.statistics, stream);
  }
}

}  // namespace gs::raster
