// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cub/block/block_scan.cuh>

#include "cull_cuda.hpp"
#include "gs/cuda/check.hpp"
#include "kernels_cuda.hpp"

namespace gs::cull {

namespace {

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kWordsPerThread = 4;
constexpr int kWordsPerChunk = kThreads * kWordsPerThread;

using BlockScan = cub::BlockScan<std::int32_t, kThreads>;

/// Pairs of one of a warp's rows and one of 32 views that the planes let through. They wait until
/// there is one for every lane: rows far apart would otherwise each keep a warp busy alone.
struct WarpQueue {
  std::uint32_t pairs[64];  // lane of the row, view << 5
  std::uint32_t words[32];  // per row: the views that see it
};

/// Tests pairs first .. first + n of the queue, n <= 32, one per lane. `stored` is this lane's row.
__device__ inline void test_pairs(const Geometry& geometry, std::int64_t stored,
                                  const Camera* cameras, const Options& options, int first, int n,
                                  WarpQueue* queue) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t pair = lane < n ? queue->pairs[first + lane] : 0;
  const std::int64_t of_row = __shfl_sync(kFullWarp, stored, static_cast<int>(pair % 32));
  const Camera& camera = cameras[pair / 32];
  Row row;
  if (lane < n && load_row(geometry, of_row, options, &row) && box_shows(camera, row, options))
    atomicOr(&queue->words[pair % 32], 1u << (pair / 32));
  __syncwarp();
}

/// Which of n <= 32 views see this lane's row, of those in `look`. With `only_whether`, rows that
/// were seen once are not looked at again. All lanes of the warp must call it.
__device__ inline std::uint32_t views_of_row(const Geometry& geometry, std::int64_t stored,
                                             const Row& place, const Camera* cameras, int n,
                                             std::uint32_t look, bool only_whether,
                                             const Options& options, WarpQueue* queue) {
  const int lane = threadIdx.x % 32;
  queue->words[lane] = 0;
  __syncwarp();
  int waiting = 0;
  for (int v = 0; v < n; ++v) {
    const bool wanted = (look >> v & 1) && !(only_whether && queue->words[lane] != 0);
    const bool passes = wanted && passes_planes(cameras[v], place);
    const unsigned together = __ballot_sync(kFullWarp, passes);
    if (together == 0) continue;
    if (passes)
      queue->pairs[waiting + __popc(together & ((1u << lane) - 1))] =
          static_cast<std::uint32_t>(lane | v << 5);
    waiting += __popc(together);
    __syncwarp();
    if (waiting >= 32) {
      waiting -= 32;
      test_pairs(geometry, stored, cameras, options, waiting, 32, queue);
    }
  }
  test_pairs(geometry, stored, cameras, options, 0, waiting, queue);
  return queue->words[lane];
}

constexpr int kCamerasPerBlock = 32;

__global__ void prepare_cameras_kernel(const float* __restrict__ viewmats,  // (n, 4, 4)
                                       const float* __restrict__ Ks,        // (n, 3, 3)
                                       const Sizes sizes, int first, int n, Options options,
                                       Camera* __restrict__ cameras,  // (n,)
                                       Totals* __restrict__ totals) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const CameraFault fault = view_camera(viewmats, Ks, sizes, i, options, &cameras[i]);
  if (fault != CameraFault::kNone &&
      atomicCAS(&totals->fault, 0, static_cast<std::int32_t>(fault)) == 0)
    totals->fault_view = first + i;
}

template <CameraModel kModel>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    mark_kernel(Geometry geometry, Layout layout, const Camera* __restrict__ cameras, int n_views,
                Options options,
                std::uint32_t* __restrict__ bits,  // (ceil(n_rows / 32),)
                Totals* __restrict__ totals) {
  options.model = kModel;
  __shared__ WarpQueue queues[kThreads / 32];
  const std::int64_t resident = blockIdx.x;
  const std::int64_t block =
      layout.block_in_slot != nullptr ? layout.block_in_slot[resident] : resident;
  if (block < 0) return;
  const int n_words = (n_views + 31) / 32;
  const std::uint32_t* views =
      layout.block_views != nullptr ? layout.block_views + block * n_words : nullptr;
  if (views != nullptr) {
    std::uint32_t any = 0;
    for (int w = 0; w < n_words; ++w) any |= views[w];
    if (any == 0) return;
  }
  for (int start = 0; start < layout.block_size; start += kThreads) {
    const int local = start + static_cast<int>(threadIdx.x);
    const std::int64_t position = block * layout.block_size + local;
    const bool exists = local < layout.block_size && position < layout.n_rows;
    std::int64_t stored = resident * layout.block_size + local, id = position;
    if (layout.order != nullptr && exists) stored = id = layout.order[position];

    Row place;
    const bool finite = exists && load_place(geometry, stored, options, &place);
    const unsigned not_finite = __ballot_sync(kFullWarp, exists && !finite);
    bool seen = false;
    for (int w = 0; w < n_words; ++w) {
      const int n = views_in_word(n_views, w);
      const std::uint32_t wanted = views != nullptr ? views[w] : first_bits(n);
      const std::uint32_t look = finite && !seen ? wanted : 0;
      if (!__any_sync(kFullWarp, look != 0)) continue;
      seen = views_of_row(geometry, stored, place, cameras + 32 * w, n, look, true, options,
                          &queues[threadIdx.x / 32]) != 0 ||
             seen;
    }
    const unsigned visible = __ballot_sync(kFullWarp, seen);
    if (layout.order != nullptr) {
      if (seen) atomicOr(&bits[id / 32], 1u << (id % 32));
    } else if (threadIdx.x % 32 == 0 && visible != 0) {
      bits[id / 32] = visible;
    }
    if (views == nullptr && not_finite != 0 && threadIdx.x % 32 == 0)
      atomicAdd(&totals->n_not_finite, __popc(not_finite));
  }
}

/// Counts the bits of each chunk; the last block to finish turns counts into offsets.
__global__ void __launch_bounds__(kThreads)
    count_kernel(const std::uint32_t* __restrict__ bits, std::int64_t n_words,
                 std::int32_t* __restrict__ chunk_offsets, std::uint32_t* __restrict__ ticket,
                 Totals* __restrict__ totals) {
  __shared__ typename BlockScan::TempStorage scratch;
  __shared__ bool is_last;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kWordsPerChunk;
  std::int32_t n = 0, before, total;
  for (int k = 0; k < kWordsPerThread; ++k) {
    const std::int64_t word = first + k * kThreads + threadIdx.x;
    if (word < n_words) n += __popc(bits[word]);
  }
  BlockScan(scratch).ExclusiveSum(n, before, total);
  if (threadIdx.x == 0) {
    chunk_offsets[blockIdx.x] = total;
    __threadfence();
    is_last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  std::int32_t sum = 0;
  for (unsigned start = 0; start < gridDim.x; start += kThreads) {
    const unsigned chunk = start + threadIdx.x;
    n = chunk < gridDim.x ? *const_cast<volatile std::int32_t*>(chunk_offsets + chunk) : 0;
    __syncthreads();
    BlockScan(scratch).ExclusiveSum(n, before, total);
    if (chunk < gridDim.x) chunk_offsets[chunk] = sum + before;
    sum += total;
  }
  if (threadIdx.x == 0) totals->n_visible = sum;
}

__global__ void __launch_bounds__(kThreads)
    write_ids_kernel(const std::uint32_t* __restrict__ bits, std::int64_t n_words,
                     const std::int32_t* __restrict__ chunk_offsets,
                     std::int32_t* __restrict__ ids,     // (U,)
                     std::uint32_t* __restrict__ mask,   // (U, 1) when there is one view
                     std::int32_t* __restrict__ counts,  // (1,) likewise
                     std::int32_t n_visible) {
  __shared__ typename BlockScan::TempStorage scratch;
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * kWordsPerChunk + threadIdx.x * kWordsPerThread;
  std::uint32_t words[kWordsPerThread];
  std::int32_t n = 0, at;
  for (int k = 0; k < kWordsPerThread; ++k) {
    words[k] = first + k < n_words ? bits[first + k] : 0;
    n += __popc(words[k]);
  }
  BlockScan(scratch).ExclusiveSum(n, at);
  at += chunk_offsets[blockIdx.x];
  for (int k = 0; k < kWordsPerThread; ++k)
    for (std::uint32_t left = words[k]; left != 0; left &= left - 1, ++at) {
      ids[at] = static_cast<std::int32_t>(32 * (first + k)) + __ffs(left) - 1;
      if (mask != nullptr) mask[at] = 1;
    }
  if (counts != nullptr && blockIdx.x == 0 && threadIdx.x == 0) counts[0] = n_visible;
}

template <CameraModel kModel>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    write_mask_kernel(Geometry geometry, Layout layout, const Camera* __restrict__ cameras,
                      int n_views, Options options, std::int64_t n_visible,
                      const std::int32_t* __restrict__ ids,  // (U,)
                      std::uint32_t* __restrict__ mask,      // (U, words)
                      std::int32_t* __restrict__ counts) {   // (B,)
  options.model = kModel;
  __shared__ std::int32_t sums[32];
  __shared__ WarpQueue queues[kThreads / 32];
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int n_words = (n_views + 31) / 32, lane = threadIdx.x % 32;
  const bool exists = i < n_visible;
  std::int64_t id = exists ? ids[i] : 0, stored = id;
  const std::uint32_t* views = nullptr;
  if (layout.order == nullptr) {
    const std::int64_t block = id / layout.block_size;
    if (layout.block_views != nullptr) views = layout.block_views + block * n_words;
    if (layout.slot_of_block != nullptr && exists)
      stored = static_cast<std::int64_t>(layout.slot_of_block[block]) * layout.block_size +
               id % layout.block_size;
  }
  Row place;
  const bool usable = exists && load_place(geometry, stored, options, &place);
  for (int w = 0; w < n_words; ++w) {
    if (threadIdx.x < 32) sums[threadIdx.x] = 0;
    __syncthreads();
    const int n = views_in_word(n_views, w);
    const std::uint32_t wanted = views != nullptr ? views[w] : first_bits(n);
    const std::uint32_t word =
        views_of_row(geometry, stored, place, cameras + 32 * w, n, usable ? wanted : 0, false,
                     options, &queues[threadIdx.x / 32]);
    for (int v = 0; v < n; ++v) {
      const unsigned together = __ballot_sync(kFullWarp, word >> v & 1);
      if (lane == 0 && together != 0) atomicAdd(&sums[v], __popc(together));
    }
    if (exists) mask[i * n_words + w] = word;
    __syncthreads();
    const int view = 32 * w + static_cast<int>(threadIdx.x);
    if (threadIdx.x < 32 && view < n_views && sums[threadIdx.x] != 0)
      atomicAdd(&counts[view], sums[threadIdx.x]);
  }
}

__global__ void __launch_bounds__(kThreads)
    box_rows_kernel(Geometry geometry, const std::int32_t* __restrict__ ids, std::int64_t n,
                    const Camera* __restrict__ camera, Options options,
                    float4* __restrict__ boxes) {  // (n, 4)
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  Row row;
  Box box;
  const bool has_box = load_row(geometry, ids[i], options, &row) && passes_planes(*camera, row) &&
                       box_of(*camera, row, options, &box);
  boxes[i] = has_box ? make_float4(box.x0, box.y0, box.x1, box.y1)
                     : make_float4(INFINITY, INFINITY, -INFINITY, -INFINITY);
}

}  // namespace

void prepare_cameras(const float* viewmats, const float* Ks, const float* sizes, int n_views,
                     const Options& options, Camera* cameras, Totals* totals,
                     cuda::StreamView stream) {
  for (int first = 0; first < n_views; first += kViewsPerLaunch) {
    const int n = std::min(kViewsPerLaunch, n_views - first);
    Sizes some = {};
    std::copy_n(sizes + 6 * static_cast<std::int64_t>(first), 6 * n, some.values);
    prepare_cameras_kernel<<<static_cast<unsigned>(ceil_div(n, kCamerasPerBlock)), kCamerasPerBlock,
                             0, stream.get()>>>(viewmats + 16 * static_cast<std::int64_t>(first),
                                                Ks + 9 * static_cast<std::int64_t>(first), some,
                                                first, n, options, cameras + first, totals);
    GS_CUDA_TRY(cudaGetLastError());
  }
}

std::int64_t visible_chunks(std::int64_t n_rows) {
  return ceil_div(ceil_div(n_rows, 32), kWordsPerChunk);
}

void mark_visible(const Geometry& geometry, const Layout& layout, const Camera* cameras,
                  int n_views, const Options& options, std::uint32_t* bits,
                  std::int32_t* chunk_offsets, std::uint32_t* ticket, Totals* totals,
                  cuda::StreamView stream) {
  if (layout.n_rows == 0 || layout.n_resident == 0) return;
  for_model(options.model, [&](auto model) {
    mark_kernel<model.value>
        <<<static_cast<unsigned>(layout.n_resident), kThreads, 0, stream.get()>>>(
            geometry, layout, cameras, n_views, options, bits, totals);
  });
  GS_CUDA_TRY(cudaGetLastError());
  count_kernel<<<static_cast<unsigned>(visible_chunks(layout.n_rows)), kThreads, 0, stream.get()>>>(
      bits, ceil_div(layout.n_rows, 32), chunk_offsets, ticket, totals);
  GS_CUDA_TRY(cudaGetLastError());
}

void write_ids(const std::uint32_t* bits, const std::int32_t* chunk_offsets, std::int64_t n_rows,
               std::int64_t n_visible, std::int32_t* ids, std::uint32_t* mask, std::int32_t* counts,
               cuda::StreamView stream) {
  if (n_visible == 0) return;
  write_ids_kernel<<<static_cast<unsigned>(visible_chunks(n_rows)), kThreads, 0, stream.get()>>>(
      bits, ceil_div(n_rows, 32), chunk_offsets, ids, mask, counts,
      static_cast<std::int32_t>(n_visible));
  GS_CUDA_TRY(cudaGetLastError());
}

void write_mask(const Geometry& geometry, const Layout& layout, const Camera* cameras, int n_views,
                const Options& options, const std::int32_t* ids, std::int64_t n_visible,
                std::uint32_t* mask, std::int32_t* counts, cuda::StreamView stream) {
  if (n_visible == 0 || n_views == 0) return;
  for_model(options.model, [&](auto model) {
    write_mask_kernel<model.value>
        <<<static_cast<unsigned>(ceil_div(n_visible, kThreads)), kThreads, 0, stream.get()>>>(
            geometry, layout, cameras, n_views, options, n_visible, ids, mask, counts);
  });
  GS_CUDA_TRY(cudaGetLastError());
}

void box_rows(const Geometry& geometry, const std::int32_t* ids, std::int64_t n,
              const Camera* camera, const Options& options, float* boxes, cuda::StreamView stream) {
  if (n == 0) return;
  box_rows_kernel<<<static_cast<unsigned>(ceil_div(n, kThreads)), kThreads, 0, stream.get()>>>(
      geometry, ids, n, camera, options, reinterpret_cast<float4*>(boxes));
  GS_CUDA_TRY(cudaGetLastError());
}

}  // namespace gs::cull
