// SPDX-License-Identifier: Apache-2.0
#include "device_step.hpp"
#include "gs/cuda/check.hpp"

namespace gs::adam {
namespace {

// A block updates this many consecutive rows, so that it finds its ids once for all tensors.
constexpr int kRows = 256;
constexpr int kThreads = 256;
constexpr unsigned kWarp = 0xffffffffu;

/// First position whose id is not below `row`. All lanes of a warp together: 32 ids a round.
template <class Id>
__device__ std::int64_t lower_bound(const Id* __restrict__ ids, std::int64_t n, std::int64_t row) {
  const int lane = threadIdx.x % 32;
  std::int64_t low = 0, high = n;
  while (low < high) {
    const std::int64_t stride = (high - low + 31) / 32;
    const std::int64_t at = low + lane * stride;
    const bool is_below = at < high && ids[at] < row;
    const int below = __popc(__ballot_sync(kWarp, is_below));
    if (below == 0) return low;
    const std::int64_t last_below = low + (below - 1) * stride;
    high = min(high, last_below + stride);
    low = last_below + 1;
  }
  return low;
}

__device__ void take_step(const Step& k, float g, float& w, float& m, float& v) {
  m = fmaf(k.blend, g - m, k.from_gradient ? g : m);
  v = fmaf(k.beta2, v, k.weight2 * g * g);
  const float denominator = fmaf(sqrtf(v), k.inverse_root, k.eps);
  w = fmaf(-k.rate, m / denominator, w * k.keep);
}

template <class Id>
__global__ void __launch_bounds__(kThreads)
    device_step_kernel(const __grid_constant__ DeviceJob job, const Id* __restrict__ ids) {
  __shared__ std::int64_t start;
  __shared__ int position[kRows];  // of each row's gradient among the block's ids, -1 without
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * kRows;
  const int n_rows = static_cast<int>(min(job.n_rows - first_row, std::int64_t{kRows}));
  if (!job.by_row) {
    for (int r = threadIdx.x; r < kRows; r += kThreads) position[r] = -1;
    if (threadIdx.x < 32) {
      const std::int64_t found = lower_bound(ids, job.ids.size, first_row);
      if (threadIdx.x == 0) start = found;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kRows && start + i < job.ids.size; i += kThreads) {
      const std::int64_t row = ids[start + i] - first_row;
      if (row < n_rows) position[row] = i;
    }
    __syncthreads();
  }
  const std::int64_t first_grad = job.by_row ? first_row : start;
  for (int k = 0; k < job.n_tensors; ++k) {
    const DeviceTensor& t = job.tensors[k];
    const auto gradient = [&](int element) {
      if (t.grad == nullptr) return 0.0f;
      const int row = element / t.width;
      const int at = job.by_row ? row : position[row];
      return at < 0 ? 0.0f : t.grad[(first_grad + at) * t.grad_stride + (element - row * t.width)];
    };
    const std::int64_t base = first_row * t.width;
    const int n = n_rows * t.width;
    const int n_quads = t.is_aligned ? n / 4 : 0;
    float4* const w4 = reinterpret_cast<float4*>(t.param + base);
    float4* const m4 = reinterpret_cast<float4*>(t.exp_avg + base);
    float4* const v4 = reinterpret_cast<float4*>(t.exp_avg_sq + base);
    for (int q = threadIdx.x; q < n_quads; q += kThreads) {
      float4 w = w4[q], m = m4[q], v = v4[q];
      take_step(t.step, gradient(4 * q), w.x, m.x, v.x);
      take_step(t.step, gradient(4 * q + 1), w.y, m.y, v.y);
      take_step(t.step, gradient(4 * q + 2), w.z, m.z, v.z);
      take_step(t.step, gradient(4 * q + 3), w.w, m.w, v.w);
      w4[q] = w;
      m4[q] = m;
      v4[q] = v;
    }
    for (int i = 4 * n_quads + threadIdx.x; i < n; i += kThreads) {
      float w = t.param[base + i], m = t.exp_avg[base + i], v = t.exp_avg_sq[base + i];
      take_step(t.step, gradient(i), w, m, v);
      t.param[base + i] = w;
      t.exp_avg[base + i] = m;
      t.exp_avg_sq[base + i] = v;
    }
  }
}

}  // namespace

void launch_device_step(const DeviceJob& job, int device, std::uintptr_t stream) {
  if (job.n_rows == 0 || job.n_tensors == 0) return;
  const cuda::DeviceGuard guard(device);
  const auto blocks = static_cast<unsigned>((job.n_rows + kRows - 1) / kRows);
  if (job.ids.wide != nullptr)
    device_step_kernel<<<blocks, kThreads, 0, cuda::as_stream(stream)>>>(job, job.ids.wide);
  else
    device_step_kernel<<<blocks, kThreads, 0, cuda::as_stream(stream)>>>(job, job.ids.narrow);
  GS_CUDA_TRY(cudaGetLastError());
}

}  // namespace gs::adam
