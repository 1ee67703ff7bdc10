// SPDX-License-Identifier: Apache-2.0
#include "device_step.hpp"
#include "gs/cuda/check.hpp"

namespace gs::adam {
namespace {

// A tile of consecutive rows is updated by one block at a time, a row's id found once for all
// tensors.
constexpr int kRows = 256;
constexpr int kThreads = 256;
constexpr unsigned kWarp = 0xffffffffu;
// Quads of values that a thread may hold, so that all memory of a tile is asked for at once.
constexpr int kMostQuads = 3;

static_assert(kRows == kThreads, "each thread looks at one id of a tile");

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

/// The gradient of the tensor's penalty at w.
__device__ float penalty_gradient(const DeviceTensor& t, float w) {
  if (t.penalty == Penalty::kExp) return t.penalty_weight * expf(w);
  const float s = 1.0f / (1.0f + expf(-w));
  return t.penalty_weight * (s * (1.0f - s));
}

__device__ void take_step(const DeviceTensor& t, float g, float& w, float& m, float& v) {
  const Step& k = t.step;
  if (t.penalty != Penalty::kNone) g += penalty_gradient(t, w);
  m = fmaf(k.blend, g - m, k.from_gradient ? g : m);
  v = fmaf(k.beta2, v, k.weight2 * g * g);
  const float denominator = fmaf(sqrtf(v), k.inverse_root, k.eps);
  w = fmaf(-k.rate, m / denominator, w * k.keep);
}

__device__ void take_step(const DeviceTensor& t, const float4& g, float4& w, float4& m, float4& v) {
  take_step(t, g.x, w.x, m.x, v.x);
  take_step(t, g.y, w.y, m.y, v.y);
  take_step(t, g.z, w.z, m.z, v.z);
  take_step(t, g.w, w.w, m.w, v.w);
}

template <bool kStream>
__device__ float4 load(const float4* at) {
  return kStream ? __ldcs(at) : *at;
}

template <bool kStream>
__device__ void store(float4* at, const float4& x) {
  if (kStream)
    __stcs(at, x);
  else
    *at = x;
}

/// Where the gradients of a tile's rows lie.
template <bool kByRow>
struct Found {
  const int* position;  // [kRows]: tile * kRows + place among the tile's ids; stale without
  int tile;
  std::int64_t first;  // of the tile

  /// -1 without a gradient.
  __device__ std::int64_t operator()(int row) const {
    if (kByRow) return first + row;
    const int at = position[row];
    return at >> 8 == tile ? first + (at & (kRows - 1)) : -1;
  }
};
static_assert(kRows == 1 << 8, "positions are packed by shifts");

/// Four values' gradients; kWidth 0 means known at run time.
template <int kWidth, bool kByRow>
__device__ float4 gradient(const DeviceTensor& t, const Found<kByRow>& found, int quad) {
  float g[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  if (t.grad == nullptr) return {0.0f, 0.0f, 0.0f, 0.0f};
  const int width = kWidth > 0 ? kWidth : t.width;
  int row = 4 * quad / width, column = 4 * quad - row * width;
  std::int64_t at = found(row);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (at >= 0) g[e] = t.grad[at * t.grad_stride + column];
    if (e < 3 && ++column == width) {
      column = 0;
      at = found(++row);
    }
  }
  return {g[0], g[1], g[2], g[3]};
}

template <bool kByRow>
__device__ float4 any_gradient(const DeviceTensor& t, const Found<kByRow>& found, int quad) {
  if (t.width == 1) return gradient<1>(t, found, quad);
  if (t.width == 3) return gradient<3>(t, found, quad);
  if (t.width == 4) return gradient<4>(t, found, quad);
  return gradient<0>(t, found, quad);
}

template <int kWidth, bool kByRow, bool kStream>
__device__ void update_tensor(const DeviceTensor& t, const Found<kByRow>& found,
                              std::int64_t first_row, int n_rows) {
  const std::int64_t base = first_row * t.width;
  const int n = n_rows * t.width;
  const int n_quads = t.is_aligned ? n / 4 : 0;
  float4* const w4 = reinterpret_cast<float4*>(t.param + base);
  float4* const m4 = reinterpret_cast<float4*>(t.exp_avg + base);
  float4* const v4 = reinterpret_cast<float4*>(t.exp_avg_sq + base);
  for (int q = threadIdx.x; q < n_quads; q += kThreads) {
    float4 w = load<kStream>(w4 + q), m = load<kStream>(m4 + q), v = load<kStream>(v4 + q);
    take_step(t, gradient<kWidth>(t, found, q), w, m, v);
    store<kStream>(w4 + q, w);
    store<kStream>(m4 + q, m);
    store<kStream>(v4 + q, v);
  }
  for (int i = 4 * n_quads + threadIdx.x; i < n; i += kThreads) {
    float w = t.param[base + i], m = t.exp_avg[base + i], v = t.exp_avg_sq[base + i];
    const int row = i / t.width;
    const std::int64_t at = t.grad != nullptr ? found(row) : -1;
    const float g = at >= 0 ? t.grad[at * t.grad_stride + (i - row * t.width)] : 0.0f;
    take_step(t, g, w, m, v);
    t.param[base + i] = w;
    t.exp_avg[base + i] = m;
    t.exp_avg_sq[base + i] = v;
  }
}

/// Tensor after tensor.
template <bool kByRow, bool kStream>
__device__ void update_tile(const DeviceJob& job, const Found<kByRow>& found,
                            std::int64_t first_row, int n_rows) {
  for (int k = 0; k < job.n_tensors; ++k) {
    const DeviceTensor& t = job.tensors[k];
    if (t.width == 1)
      update_tensor<1, kByRow, kStream>(t, found, first_row, n_rows);
    else if (t.width == 3)
      update_tensor<3, kByRow, kStream>(t, found, first_row, n_rows);
    else if (t.width == 4)
      update_tensor<4, kByRow, kStream>(t, found, first_row, n_rows);
    else
      update_tensor<0, kByRow, kStream>(t, found, first_row, n_rows);
  }
}

/// A whole tile's values, those of all tensors asked for before the first is used.
template <bool kStream>
struct Held {
  float4 w[kMostQuads], m[kMostQuads], v[kMostQuads];
  int tensor[kMostQuads], quad[kMostQuads];

  __device__ void load_all(const DeviceJob& job, std::int64_t first_row) {
#pragma unroll
    for (int j = 0; j < kMostQuads; ++j) {
      // Tensors begin at whole warps: kRows / 4 quads a column.
      int q = threadIdx.x + j * kThreads, k = 0;
      while (k < job.n_tensors && q >= kRows / 4 * job.tensors[k].width)
        q -= kRows / 4 * job.tensors[k++].width;
      tensor[j] = k;
      quad[j] = q;
      if (k == job.n_tensors) continue;
      const DeviceTensor& t = job.tensors[k];
      const std::int64_t base = first_row * t.width;
      w[j] = load<kStream>(reinterpret_cast<const float4*>(t.param + base) + q);
      m[j] = load<kStream>(reinterpret_cast<const float4*>(t.exp_avg + base) + q);
      v[j] = load<kStream>(reinterpret_cast<const float4*>(t.exp_avg_sq + base) + q);
    }
  }

  template <bool kByRow>
  __device__ void update_all(const DeviceJob& job, const Found<kByRow>& found,
                             std::int64_t first_row) {
#pragma unroll
    for (int j = 0; j < kMostQuads; ++j) {
      if (tensor[j] == job.n_tensors) continue;
      const DeviceTensor& t = job.tensors[tensor[j]];
      const std::int64_t base = first_row * t.width;
      take_step(t, any_gradient(t, found, quad[j]), w[j], m[j], v[j]);
      store<kStream>(reinterpret_cast<float4*>(t.param + base) + quad[j], w[j]);
      store<kStream>(reinterpret_cast<float4*>(t.exp_avg + base) + quad[j], m[j]);
      store<kStream>(reinterpret_cast<float4*>(t.exp_avg_sq + base) + quad[j], v[j]);
    }
  }
};

/// `held`: every tensor is aligned and a tile of all has at most kMostQuads * kThreads quads.
template <class Id, bool kByRow, int kTiles, bool kHeld, bool kStream, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    device_step_kernel(const __grid_constant__ DeviceJob job, const Id* __restrict__ ids) {
  __shared__ std::int64_t found_start;
  // Two, so that one barrier a tile is enough.
  __shared__ int position[2][kRows];
  const std::int64_t first_tile = static_cast<std::int64_t>(blockIdx.x) * kTiles;
  const int thread = static_cast<int>(threadIdx.x);
  std::int64_t start = 0;
  Id id = 0;
  if (!kByRow) {
    position[0][thread] = position[1][thread] = -1;
    if (thread < 32) {
      const std::int64_t at = lower_bound(ids, job.ids.size, first_tile * kRows);
      if (thread == 0) found_start = at;
    }
    __syncthreads();
    start = found_start;
    if (start + thread < job.ids.size) id = ids[start + thread];
  }
  for (int tile = 0; tile < kTiles; ++tile) {
    const std::int64_t first_row = (first_tile + tile) * kRows;
    if (first_row >= job.n_rows) return;
    const int n_rows = static_cast<int>(min(job.n_rows - first_row, std::int64_t{kRows}));
    const bool is_held = kHeld && n_rows == kRows;
    Held<kStream> held;
    if (is_held) held.load_all(job, first_row);
    Found<kByRow> found{position[tile % 2], tile, first_row};
    if (!kByRow) {
      const std::int64_t row = id - first_row;
      const bool is_here = start + thread < job.ids.size && row < n_rows;
      if (is_here) position[tile % 2][row] = tile * kRows + thread;
      const int count = __syncthreads_count(is_here);
      found.first = start;
      start += count;
      // The next tile's ids are on their way while this one is updated.
      if (start + thread < job.ids.size) id = ids[start + thread];
    }
    if (is_held)
      held.update_all(job, found, first_row);
    else
      update_tile<kByRow, kStream>(job, found, first_row, n_rows);
  }
}

bool can_hold(const DeviceJob& job) {
  std::int64_t width = 0;
  bool is_aligned = true;
  for (int k = 0; k < job.n_tensors; ++k) {
    width += job.tensors[k].width;
    is_aligned = is_aligned && job.tensors[k].is_aligned;
  }
  return is_aligned && width * kRows <= std::int64_t{4} * kMostQuads * kThreads;
}

template <class Id, bool kByRow, int kTiles, bool kHeld, bool kStream, int kBlocks>
void launch(const DeviceJob& job, const Id* ids, cudaStream_t stream) {
  constexpr std::int64_t kBlockRows = std::int64_t{kRows} * kTiles;
  const auto blocks = static_cast<unsigned>((job.n_rows + kBlockRows - 1) / kBlockRows);
  device_step_kernel<Id, kByRow, kTiles, kHeld, kStream, kBlocks>
      <<<blocks, kThreads, 0, stream>>>(job, ids);
}

template <class Id, bool kByRow>
void launch_variant(const DeviceJob& job, const Id* ids, int variant, cudaStream_t stream) {
  if (variant >= 3 && !can_hold(job)) variant = 2;
  switch (variant) {
    case 0:
      return launch<Id, kByRow, 1, false, false, 4>(job, ids, stream);
    case 1:
      return launch<Id, kByRow, 8, false, false, 4>(job, ids, stream);
    case 2:
      return launch<Id, kByRow, 8, false, false, 6>(job, ids, stream);
    case 3:
      return launch<Id, kByRow, 8, true, false, 2>(job, ids, stream);
    case 4:
      return launch<Id, kByRow, 8, true, false, 3>(job, ids, stream);
    case 5:
      return launch<Id, kByRow, 8, true, true, 2>(job, ids, stream);
    case 6:
      return launch<Id, kByRow, 2, true, false, 2>(job, ids, stream);
    default:
      return launch<Id, kByRow, 16, true, false, 3>(job, ids, stream);
  }
}

}  // namespace

void launch_device_step(const DeviceJob& job, int device, std::uintptr_t stream, int variant) {
  if (job.n_rows == 0 || job.n_tensors == 0) return;
  const cuda::DeviceGuard guard(device);
  const cudaStream_t on = cuda::as_stream(stream);
  if (job.by_row)
    launch_variant<std::int32_t, true>(job, nullptr, variant, on);
  else if (job.ids.wide != nullptr)
    launch_variant<std::int64_t, false>(job, job.ids.wide, variant, on);
  else
    launch_variant<std::int32_t, false>(job, job.ids.narrow, variant, on);
  GS_CUDA_TRY(cudaGetLastError());
}

}  // namespace gs::adam
