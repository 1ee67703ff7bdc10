// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "blocks_cuda.hpp"
#include "gs/cuda/check.hpp"

namespace gs::cull {

namespace {

constexpr int kThreads = 256;
constexpr int kCodeBits = 63;

unsigned grid_for(std::int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

__global__ void morton_codes_kernel(const float* __restrict__ means,  // (n, 3)
                                    std::int64_t n, MortonCube cube,
                                    std::uint64_t* __restrict__ codes,  // (n,)
                                    std::int32_t* __restrict__ rows) {  // (n,)
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  codes[i] = morton_code(means + 3 * i, cube);
  rows[i] = static_cast<std::int32_t>(i);
}

__device__ Bounds shuffled_down(const Bounds& a, int by) {
  Bounds b;
  for (int c = 0; c < 3; ++c) {
    b.lower[c] = __shfl_down_sync(0xffffffffu, a.lower[c], by);
    b.upper[c] = __shfl_down_sync(0xffffffffu, a.upper[c], by);
  }
  b.scale = __shfl_down_sync(0xffffffffu, a.scale, by);
  return b;
}

/// One thread block per block of rows.
__global__ void __launch_bounds__(kThreads)
    fit_blocks_kernel(Geometry geometry, Blocking blocking,
                      const std::int32_t* __restrict__ blocks,  // (n,)
                      const std::int32_t* __restrict__ stored,  // (n,)
                      Options options, BoundsArrays out) {
  __shared__ Bounds parts[kThreads / 32];
  __shared__ std::int32_t n_not_finite;
  if (threadIdx.x == 0) n_not_finite = 0;
  __syncthreads();
  const std::int64_t block = blocks[blockIdx.x], begin = block * blocking.size;
  const std::int64_t start = static_cast<std::int64_t>(stored[blockIdx.x]) * blocking.size;
  Bounds bounds = no_bounds();
  std::int32_t bad = 0;
  for (int i = threadIdx.x; i < blocking.size && begin + i < blocking.n_rows; i += kThreads) {
    const std::int64_t row = blocking.order != nullptr ? blocking.order[begin + i] : start + i;
    bad += !add_row(geometry, row, options, &bounds);
  }
  if (bad != 0) atomicAdd(&n_not_finite, bad);
  for (int by = 16; by > 0; by /= 2) join(&bounds, shuffled_down(bounds, by));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = bounds;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) join(&bounds, parts[w]);
  for (int c = 0; c < 3; ++c) {
    out.lower[3 * block + c] = bounds.lower[c];
    out.upper[3 * block + c] = bounds.upper[c];
  }
  out.scale[block] = bounds.scale;
  out.not_finite[block] = n_not_finite;
}

__global__ void __launch_bounds__(kThreads)
    views_of_blocks_kernel(BoundsArrays bounds, std::int64_t n_blocks,
                           const Camera* __restrict__ cameras,  // (n_views,)
                           int n_views, Options options,
                           const std::int32_t* __restrict__ slot_of_block,  // (n_blocks,) or null
                           std::uint32_t* __restrict__ words,               // (n_blocks, n_words)
                           std::int32_t* __restrict__ n_not_finite) {
  const int n_words = (n_views + 31) / 32;
  const int n_columns = n_words > 0 ? n_words : 1;  // without views blocks are still counted
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n_blocks * n_columns) return;
  const int w = static_cast<int>(i % n_columns);
  const std::int64_t block = i / n_columns;
  const Bounds grown = grown_bounds(bounds, block, options);
  std::uint32_t word = 0;
  for (int v = 32 * w; v < n_views && v < 32 * w + 32; ++v)
    if (may_show(cameras[v], grown)) word |= 1u << (v % 32);
  if (w < n_words) words[i] = word;
  const bool present = slot_of_block == nullptr || slot_of_block[block] >= 0;
  if (w == 0 && present && bounds.not_finite[block] != 0)
    atomicAdd(n_not_finite, bounds.not_finite[block]);
}

}  // namespace

void morton_codes(const float* means, std::int64_t n, const MortonCube& cube, std::uint64_t* codes,
                  std::int32_t* rows, cuda::StreamView stream) {
  if (n == 0) return;
  morton_codes_kernel<<<grid_for(n), kThreads, 0, stream.get()>>>(means, n, cube, codes, rows);
  GS_CUDA_TRY(cudaGetLastError());
}

std::size_t sort_workspace_bytes(std::int64_t n) {
  std::size_t bytes = 0;
  cub::DoubleBuffer<std::uint64_t> keys;
  cub::DoubleBuffer<std::int32_t> values;
  GS_CUDA_TRY(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, values, n, 0, kCodeBits));
  return bytes;
}

int sort_rows(std::uint64_t* codes, std::int32_t* rows, std::int64_t n, void* workspace,
              std::size_t workspace_bytes, cuda::StreamView stream) {
  if (n == 0) return 0;
  cub::DoubleBuffer<std::uint64_t> keys(codes, codes + n);
  cub::DoubleBuffer<std::int32_t> values(rows, rows + n);
  GS_CUDA_TRY(cub::DeviceRadixSort::SortPairs(workspace, workspace_bytes, keys, values, n, 0,
                                              kCodeBits, stream.get()));
  return values.selector;
}

void fit_blocks(const Geometry& geometry, const Blocking& blocking, const std::int32_t* blocks,
                const std::int32_t* stored, std::int64_t n, const Options& options,
                const BoundsArrays& out, cuda::StreamView stream) {
  if (n == 0) return;
  fit_blocks_kernel<<<static_cast<unsigned>(n), kThreads, 0, stream.get()>>>(
      geometry, blocking, blocks, stored, options, out);
  GS_CUDA_TRY(cudaGetLastError());
}

void views_of_blocks(const BoundsArrays& bounds, std::int64_t n_blocks, const Camera* cameras,
                     int n_views, const Options& options, const std::int32_t* slot_of_block,
                     std::uint32_t* words, std::int32_t* n_not_finite, cuda::StreamView stream) {
  const std::int64_t n = n_blocks * std::max((n_views + 31) / 32, 1);
  if (n == 0) return;
  views_of_blocks_kernel<<<grid_for(n), kThreads, 0, stream.get()>>>(
      bounds, n_blocks, cameras, n_views, options, slot_of_block, words, n_not_finite);
  GS_CUDA_TRY(cudaGetLastError());
}

}  // namespace gs::cull
