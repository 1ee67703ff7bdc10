// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gs/cuda/check.hpp"
#include "kernels_cuda.hpp"
#include "mark_cuda.hpp"

namespace gs::cull {

namespace {

/// As many blocks as run at once: each makes the cameras, for all of its rows.
std::int64_t most_blocks() {
  int device = 0, multiprocessors = 0;
  GS_CUDA_TRY(cudaGetDevice(&device));
  GS_CUDA_TRY(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  return static_cast<std::int64_t>(kBlocksPerMultiprocessor) * multiprocessors;
}

/// One thread a row, 32 views at a time: the views of one word of the mask.
template <CameraModel kModel>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    mark_rows_kernel(Geometry geometry,
                     const std::int32_t* __restrict__ ids,    // (n,)
                     const std::uint32_t* __restrict__ mask,  // (n, n_words)
                     std::int64_t n, int n_words,
                     const float* __restrict__ viewmats,  // (n_views, 4, 4)
                     const float* __restrict__ Ks,        // (n_views, 3, 3)
                     const Sizes sizes, int first_word, int n_views, Options options,
                     bool* __restrict__ marks) {  // (n,) set before, unless first_word is 0
  options.model = kModel;
  __shared__ Camera cameras[32];
  for (int w = 0; 32 * w < n_views; ++w) {
    const int n_here = views_in_word(n_views, w), own = static_cast<int>(threadIdx.x);
    __syncthreads();  // every thread is done with the cameras of the word before
    if (own < n_here) view_camera(viewmats, Ks, sizes, 32 * w + own, options, &cameras[own]);
    __syncthreads();
    const int word = first_word + w;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n;
         i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
      if (word > 0 && marks[i]) continue;
      bool seen = false;
      std::uint32_t left = mask[i * n_words + word] & first_bits(n_here);
      Row row;
      if (left != 0 && load_row(geometry, ids[i], options, &row))
        for (; left != 0 && !seen; left &= left - 1)
          seen = shows(cameras[__ffs(static_cast<int>(left)) - 1], row, options);
      marks[i] = seen;
    }
  }
}

}  // namespace

void mark_rows(const Geometry& geometry, const std::int32_t* ids, const std::uint32_t* mask,
               std::int64_t n, const ViewArrays& views, int n_views, const Options& options,
               bool* marks, cuda::StreamView stream) {
  if (n == 0) return;
  if (n_views == 0) {
    GS_CUDA_TRY(cudaMemsetAsync(marks, 0, static_cast<std::size_t>(n), stream.get()));
    return;
  }
  const auto n_blocks = static_cast<unsigned>(std::min(ceil_div(n, kThreads), most_blocks()));
  const int n_words = (n_views + 31) / 32;
  for (int first = 0; first < n_views; first += kViewsPerLaunch) {
    const int some = std::min(kViewsPerLaunch, n_views - first);
    const auto at = static_cast<std::int64_t>(first);
    Sizes sizes = {};
    std::copy_n(views.sizes + 6 * at, 6 * some, sizes.values);
    for_model(options.model, [&](auto model) {
      mark_rows_kernel<model.value><<<n_blocks, kThreads, 0, stream.get()>>>(
          geometry, ids, mask, n, n_words, views.viewmats + 16 * at, views.Ks + 9 * at, sizes,
          first / 32, some, options, marks);
    });
    GS_CUDA_TRY(cudaGetLastError());
  }
}

}  // namespace gs::cull
