// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gs/cuda/check.hpp"
#include "pair_counts_cuda.hpp"

namespace gs::cull {

namespace {

// A block of 1024 threads, one for each pair of 32 x 32 views, reads 1024 rows at a time: a warp
// turns 32 words into 32 bit columns.
constexpr int kThreads = 1024;
constexpr int kColumns = kThreads / 32;

__device__ void transpose(const std::uint32_t* __restrict__ mask, std::int64_t row, std::int64_t n,
                          int n_words, int word, std::uint32_t (*columns)[kColumns + 1]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::uint32_t bits = row < n ? mask[row * n_words + word] : 0;
  std::uint32_t mine = 0;
  for (int v = 0; v < 32; ++v) {
    const std::uint32_t column = __ballot_sync(0xffffffffu, bits >> v & 1);
    if (lane == v) mine = column;
  }
  columns[lane][warp] = mine;
}

__global__ void __launch_bounds__(kThreads)
    pair_counts_kernel(const std::uint32_t* __restrict__ mask,  // (n, n_words)
                       std::int64_t n, int n_views, int n_words,
                       unsigned long long* __restrict__ together) {  // (B, B)
  const int word_i = blockIdx.y, word_j = blockIdx.z;
  if (word_j < word_i) return;
  // One column of padding keeps the 32 views of a column in different banks.
  __shared__ std::uint32_t left[32][kColumns + 1], right[32][kColumns + 1];
  const int i = threadIdx.x / 32, j = threadIdx.x % 32;
  unsigned long long sum = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * kThreads; start < n;
       start += stride) {
    transpose(mask, start + threadIdx.x, n, n_words, word_i, left);
    if (word_j != word_i) transpose(mask, start + threadIdx.x, n, n_words, word_j, right);
    __syncthreads();
    const auto& other = word_j != word_i ? right : left;
    int part = 0;
    for (int k = 0; k < kColumns; ++k) part += __popc(left[i][k] & other[j][k]);
    sum += part;
    __syncthreads();
  }
  const int view_i = 32 * word_i + i, view_j = 32 * word_j + j;
  if (view_i >= n_views || view_j >= n_views || sum == 0) return;
  atomicAdd(&together[static_cast<std::int64_t>(view_i) * n_views + view_j], sum);
  if (word_i != word_j)
    atomicAdd(&together[static_cast<std::int64_t>(view_j) * n_views + view_i], sum);
}

}  // namespace

void pair_counts(const std::uint32_t* mask, std::int64_t n, int n_views,
                 unsigned long long* together, cuda::StreamView stream) {
  if (n == 0 || n_views == 0) return;
  const int n_words = (n_views + 31) / 32;
  const auto pieces =
      static_cast<unsigned>(std::min<std::int64_t>((n + kThreads - 1) / kThreads, 264));
  const dim3 grid(pieces, static_cast<unsigned>(n_words), static_cast<unsigned>(n_words));
  pair_counts_kernel<<<grid, kThreads, 0, stream.get()>>>(mask, n, n_views, n_words, together);
  GS_CUDA_TRY(cudaGetLastError());
}

}  // namespace gs::cull
