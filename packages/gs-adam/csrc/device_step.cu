// SPDX-License-Identifier: Apache-2.0
#include "device_math.cuh"
#include "device_rows.cuh"
#include "device_step.hpp"
#include "gs/cuda/check.hpp"

namespace gs::adam {
namespace {

// A thread has few values, and many blocks share a multiprocessor: what a value waits for, its
// row's word and then its gradient, is hidden by other threads alone.
constexpr int kThreads = 256;
constexpr int kBlocks = 6;
constexpr std::int64_t kValues = 4 * kThreads;
// Blocks between one that asks for gradients and the one that reads them: about as many as run at
// once, so that they have come and are still there.
constexpr std::uint32_t kAhead = 800;

/// The slope of the tensor's penalty at w.
__device__ float penalty_slope(const DeviceTensor& t, float w) {
  if (t.penalty == Penalty::kExp) return expf(w);
  const float s = 1.0f / (1.0f + expf(-w));
  return s * (1.0f - s);
}

// Fused by name: values of a block's quads and those of a tensor's end are rounded alike.
__device__ void take_step(const DeviceTensor& t, float g, float& w, float& m, float& v) {
  if (t.penalty != Penalty::kNone) g = fmaf(t.penalty_weight, penalty_slope(t, w), g);
  take_step(t.step, g, w, m, v);
}

__device__ void take_step(const DeviceTensor& t, const float4& g, float4& w, float4& m, float4& v) {
  take_step(t, g.x, w.x, m.x, v.x);
  take_step(t, g.y, w.y, m.y, v.y);
  take_step(t, g.z, w.z, m.z, v.z);
  take_step(t, g.w, w.w, m.w, v.w);
}

/// Where a block's values begin.
struct Start {
  std::int64_t value;
  std::int64_t row;
  unsigned column;
};

/// Gradients of four values in a row, the first `i` values after the start.
template <int kWidth, bool kByRow>
__device__ float4 gradient(const DeviceTensor& t, Positions<kByRow>& positions, const Start& start,
                           unsigned i) {
  if (t.grad == nullptr) return {0.0f, 0.0f, 0.0f, 0.0f};
  if (kByRow && t.has_flat_grad)
    return reinterpret_cast<const float4*>(t.grad + start.value)[i / 4];
  const unsigned width = kWidth > 0 ? kWidth : t.width;
  const unsigned rows_on = (start.column + i) / width;
  unsigned column = start.column + i - rows_on * width;
  std::int64_t row = start.row + rows_on;
  std::int64_t at = positions(row);
  float g[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (at >= 0) g[e] = t.grad[at * t.grad_stride + column];
    if (e < 3 && ++column == width) {
      column = 0;
      at = positions(++row);
    }
  }
  return {g[0], g[1], g[2], g[3]};
}

/// A block's values, four to a thread.
template <int kWidth, bool kByRow>
__device__ void update_quads(const DeviceTensor& t, const RowWord* __restrict__ words,
                             const Start& start) {
  const unsigned q = threadIdx.x;
  float4* const w4 = reinterpret_cast<float4*>(t.param + start.value) + q;
  float4* const m4 = reinterpret_cast<float4*>(t.exp_avg + start.value) + q;
  float4* const v4 = reinterpret_cast<float4*>(t.exp_avg_sq + start.value) + q;
  float4 w = *w4, m = *m4, v = *v4;
  Positions<kByRow> positions(words);
  const float4 g = gradient<kWidth>(t, positions, start, 4 * q);
  take_step(t, g, w, m, v);
  *w4 = w;
  *m4 = m;
  *v4 = v;
}

/// The same one by one, for a tensor's end and tensors that are not aligned.
template <bool kByRow>
__device__ void update_values(const DeviceTensor& t, const RowWord* __restrict__ words,
                              const Start& start, unsigned n) {
  Positions<kByRow> positions(words);
  for (unsigned i = threadIdx.x; i < n; i += kThreads) {
    const unsigned rows_on = (start.column + i) / t.width;
    const unsigned column = start.column + i - rows_on * t.width;
    const std::int64_t at = t.grad != nullptr ? positions(start.row + rows_on) : -1;
    const float g = at >= 0 ? t.grad[at * t.grad_stride + column] : 0.0f;
    const std::int64_t x = start.value + i;
    float w = t.param[x], m = t.exp_avg[x], v = t.exp_avg_sq[x];
    take_step(t, g, w, m, v);
    t.param[x] = w;
    t.exp_avg[x] = m;
    t.exp_avg_sq[x] = v;
  }
}

__device__ int tensor_of(const DeviceJob& job, std::uint32_t block) {
  int k = 0;
  while (k + 1 < job.n_tensors && block >= job.first_block[k + 1]) ++k;
  return k;
}

__device__ void fetch(const float* value) { asm volatile("prefetch.global.L2 [%0];" ::"l"(value)); }

/// Brings the gradients of a later block into the second-level cache, a word of its rows to a
/// thread. Where they lie is known only after a look-up: a block that begins with it would wait
/// twice, and values without a gradient do not wait at all.
__device__ void fetch_gradients(const DeviceJob& job, std::uint32_t block) {
  constexpr unsigned kMostWords = kValues / kWordRows + 1;
  if (threadIdx.x >= kMostWords || block >= gridDim.x) return;
  const int k = tensor_of(job, block);
  const DeviceTensor& t = job.tensors[k];
  const std::int64_t start = static_cast<std::int64_t>(block - job.first_block[k]) * kValues;
  const std::int64_t last_row = min((start + kValues - 1) / t.width, job.n_rows - 1);
  const std::int64_t at = start / t.width / kWordRows + threadIdx.x;
  if (t.grad == nullptr || at > last_row / kWordRows) return;
  const RowWord word = static_cast<const RowWord*>(job.words)[at];
  if (word.rows == 0) return;
  const float* const first = t.grad + word.first * t.grad_stride;
  fetch(first);
  fetch(first + (__popc(word.rows) - 1) * t.grad_stride + t.width - 1);
}

template <bool kByRow>
__global__ void __launch_bounds__(kThreads, kBlocks)
    device_step_kernel(const __grid_constant__ DeviceJob job) {
  if (!kByRow) fetch_gradients(job, blockIdx.x + kAhead);
  const int k = tensor_of(job, blockIdx.x);
  const DeviceTensor& t = job.tensors[k];
  const auto* const words = static_cast<const RowWord*>(job.words);
  Start start;
  start.value = static_cast<std::int64_t>(blockIdx.x - job.first_block[k]) * kValues;
  start.row = start.value / t.width;
  start.column = static_cast<unsigned>(start.value - start.row * t.width);
  const std::int64_t left = job.n_rows * t.width - start.value;
  if (!t.is_aligned || left < kValues)
    update_values<kByRow>(t, words, start, static_cast<unsigned>(min(left, kValues)));
  else if (t.width == 1)
    update_quads<1, kByRow>(t, words, start);
  else if (t.width == 3)
    update_quads<3, kByRow>(t, words, start);
  else if (t.width == 4)
    update_quads<4, kByRow>(t, words, start);
  else
    update_quads<0, kByRow>(t, words, start);
}

template <bool kByRow>
void launch_update(DeviceJob job, cuda::StreamView stream) {
  std::int64_t blocks = 0;
  for (int k = 0; k < job.n_tensors; ++k) {
    job.first_block[k] = static_cast<std::uint32_t>(blocks);
    blocks += (job.n_rows * job.tensors[k].width + kValues - 1) / kValues;
  }
  GS_CHECK(blocks <= INT32_MAX, "params must have fewer than ", kValues * INT32_MAX,
           " values together, got ", blocks * kValues);
  device_step_kernel<kByRow><<<static_cast<unsigned>(blocks), kThreads, 0, stream.get()>>>(job);
}

template <class Id>
void launch_index(const DeviceJob& job, const Id* ids, cuda::StreamView stream) {
  constexpr int kWarps = 4;
  const std::int64_t n_words = (job.n_rows + kWordRows - 1) / kWordRows;
  const std::int64_t blocks = (n_words + 32 * kWarps - 1) / (32 * kWarps);
  index_rows_kernel<Id, kWarps><<<static_cast<unsigned>(blocks), 32 * kWarps, 0, stream.get()>>>(
      ids, job.ids.size, static_cast<RowWord*>(job.words), n_words);
}

}  // namespace

void launch_device_step(const DeviceJob& job, int device, cuda::StreamView stream) {
  if (job.n_rows == 0 || job.n_tensors == 0) return;
  const cuda::DeviceGuard guard(device);
  // As many ids as rows are all rows.
  const bool by_row = job.by_row || job.ids.size == job.n_rows;
  if (!by_row && job.ids.wide != nullptr) launch_index(job, job.ids.wide, stream);
  if (!by_row && job.ids.wide == nullptr) launch_index(job, job.ids.narrow, stream);
  GS_CUDA_TRY(cudaGetLastError());
  if (by_row)
    launch_update<true>(job, stream);
  else
    launch_update<false>(job, stream);
  GS_CUDA_TRY(cudaGetLastError());
}

}  // namespace gs::adam
