// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gs/cuda/check.hpp"
#include "gs/error.hpp"
#include "launch.cuh"
#include "loss.hpp"
#include "warp.cuh"
#include "window.cuh"

namespace gs::raster {

namespace {

// A row of an image is 3 * width numbers, in which the pixel to the right is 3 numbers away. A
// block answers for a strip of columns of these and a run of rows. It walks down the rows once:
// thread t blurs the row across for the window that begins in column t, adds it to the windows that
// are open there, and takes the terms of the window that it completes. The terms go the same way a
// second time, which gives the gradient. Nothing but the gradient is written. The strips overlap by
// two windows and the runs by 20 rows: that work is done twice, and costs less than maps in memory.
constexpr int kStrip = kThreads - kHalo;   // columns that a block answers for
constexpr int kLoaded = kThreads + kHalo;  // columns that it reads
constexpr int kRing = 16;                  // rows at hand, at least kWindow + 2
constexpr int kResident = 2;               // blocks of a multiprocessor: 128 registers a thread
constexpr int kLeastRows = 16;             // fewer would mostly do what others do too
constexpr int kWarps = kThreads / kWarp;
constexpr std::uint8_t kCounts = 255;  // of a mask
constexpr int kCentre = kReach / 2;    // of a window: pixels from its begin

/// How an image is cut; block b has strip b % strips and run b / strips.
struct Cut {
  int strips, rows;  // rows of a run
  std::int64_t n_blocks;
};

/// As many blocks as the device holds at a time: with a few more, most would wait for those.
Cut cut_image(int width, int height) {
  if (width == 0 || height == 0) return {0, 0, 0};
  int device = 0, multiprocessors = 0;
  GS_CUDA_TRY(cudaGetDevice(&device));
  GS_CUDA_TRY(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  const auto strips = static_cast<int>(ceil_div(std::int64_t{width} * kChannels, kStrip));
  const int runs = std::max(kResident * multiprocessors / strips, 1);
  const int rows = std::max(static_cast<int>(ceil_div(height, runs)), kLeastRows);
  return {strips, rows, strips * ceil_div(height, rows)};
}

/// k / 255 as division rounds it.
__device__ __forceinline__ float from_byte(std::uint8_t value) {
  constexpr float kPer255 = 1.0f / 255.0f;
  const auto whole = static_cast<float>(value);
  const float near = whole * kPer255;
  return __fmaf_rn(__fmaf_rn(-near, 255.0f, whole), kPer255, near);
}

/// One number of image and photograph that is on its way from memory.
template <bool kMasked>
struct Fetch {
  float image = 0.0f;
  std::uint8_t truth = 0;

  __device__ __forceinline__ Fetch(const ImagePair& pair, int row, int column) {
    if (row >= pair.height || column < 0 || column >= pair.width * kChannels) return;
    const std::int64_t y = row;
    image = pair.image[y * pair.width * kChannels + column];
    truth = pair.truth[y * pair.truth_pitch + column];
  }
  __device__ __forceinline__ Pixel pixel() const {
    const float of_truth = from_byte(truth);
    return {of_truth, image - of_truth};
  }
};

/// The same of a photograph with a mask.
template <>
struct Fetch<true> {
  float image = 0.0f;
  std::uint8_t truth = 0, state = kCounts;

  __device__ __forceinline__ Fetch(const ImagePair& pair, int row, int column) {
    if (row >= pair.height || column < 0 || column >= pair.width * kChannels) return;
    const std::int64_t y = row;
    const int x = column / kChannels, channel = column - x * kChannels;
    const std::uint8_t* const of_pixel = pair.truth + y * pair.truth_pitch + x * (kChannels + 1);
    image = pair.image[y * pair.width * kChannels + column];
    truth = of_pixel[channel];
    state = of_pixel[kChannels];
  }
  __device__ __forceinline__ Pixel pixel() const {
    if (state != kCounts) return {-0.0f, 0.0f};
    const float of_truth = from_byte(truth);
    return {of_truth, image - of_truth};
  }
};

/// What windows hand to the gradient, for two rows: one is written while the other is read.
struct Maps {
  struct alignas(8) Two {
    float constant, by_error;
  };
  Two two[2][kThreads];
  float by_image[2][kThreads];

  __device__ __forceinline__ void set(int row, int column, const WindowTerms& terms) {
    two[row & 1][column] = {terms.constant, terms.by_error};
    by_image[row & 1][column] = terms.by_image;
  }

  /// Sums over the windows of a row that pixel `column` lies in.
  __device__ __forceinline__ WindowTerms across(int row, int column) const {
    const Two* const last = two[row & 1] + column;
    const float* const last_image = by_image[row & 1] + column;
    const float middle = window_weight(kReach / 2);
    WindowTerms sums{0.0f, middle * last[-kHalo / 2].constant, middle * last[-kHalo / 2].by_error,
                     middle * last_image[-kHalo / 2]};
#pragma unroll
    for (int k = kReach / 2 - 1; k >= 0; --k) {
      const int near = -k * kChannels, far = k * kChannels - kHalo;
      const Two a = last[near], b = last[far];
      const float weight = window_weight(k);
      sums.constant += weight * (a.constant + b.constant);
      sums.by_error += weight * (a.by_error + b.by_error);
      sums.by_image += weight * (last_image[near] + last_image[far]);
    }
    return sums;
  }
};

/// The sum over the threads of a block, in a fixed order; thread 0 has it.
__device__ __forceinline__ double block_sum(double term) {
  __shared__ double of_warps[kWarps];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) term += __shfl_xor_sync(kWholeWarp, term, step);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = term;
  __syncthreads();
  double sum = 0.0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[warp];
  return sum;
}

template <bool kMasked>
__global__ void __launch_bounds__(kThreads, kResident)
    loss_kernel(ImagePair pair, Rect core, LossWeights weights, int strips, int rows,
                float* __restrict__ gradient,     // (height, 3 * width)
                double* __restrict__ partials) {  // one of each block
  __shared__ Pixel ring[kRing][kLoaded];
  __shared__ Maps maps;
  const auto block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int n = pair.width * kChannels;
  // The first windows that reach into the strip begin kHalo columns before it.
  const int column = block % strips * kStrip - kHalo + thread;
  const bool begins_window = column >= 0 && column < n - kHalo;
  const bool is_own = thread >= kHalo && column < n;
  const bool is_in_core = column >= core.x0 * kChannels && column < core.x1 * kChannels;
  const bool reads_two = thread < kHalo;
  const int first = block / strips * rows, end = min(first + rows, pair.height);
  const int begin = max(first - kReach, 0), read_end = min(end + kReach, pair.height);

  using Number = Fetch<kMasked>;
  OpenWindows truth, error, squares, products, constant, by_error, by_image;
  [[maybe_unused]] OpenWindows counted;
  CompensatedSum share;
  const auto store = [&](int row, const Number& own, const Number& beyond) {
    ring[row % kRing][thread] = own.pixel();
    if (reads_two) ring[row % kRing][thread + kThreads] = beyond.pixel();
  };
  const auto terms_of = [&](const Means& means, float weight, int last_row) {
    if constexpr (kMasked) {
      const Pixel centre = ring[(last_row - kCentre) % kRing][thread + kCentre * kChannels];
      return centre.counts() ? masked_window_terms(means, weight) : WindowTerms{};
    }
    return window_terms(means);
  };
  const auto fetch_beyond = [&](int row) {
    return Number(pair, row, reads_two ? column + kThreads : -1);
  };
  store(begin, Number(pair, begin, column), fetch_beyond(begin));
  Number next(pair, begin + 1, column), next_beyond = fetch_beyond(begin + 1);
  __syncthreads();

  // In one turn `row` completes windows, which began kReach rows before; one row behind, windows
  // complete the gradient of the row in which they begin.
  for (int row = begin; row <= end + kReach; ++row) {
    if (row + 1 < read_end) store(row + 1, next, next_beyond);
    next = Number(pair, row + 2, column);
    next_beyond = fetch_beyond(row + 2);

    float value = 0.0f;
    if (row < read_end) {
      const Means across = means_across(ring[row % kRing] + thread);
      const Means means{truth.push(across.truth), error.push(across.error),
                        squares.push(across.squares), products.push(across.products)};
      [[maybe_unused]] float weight = 1.0f;
      if constexpr (kMasked) weight = counted.push(weight_across(ring[row % kRing] + thread));
      if (row >= begin + kReach) {
        const WindowTerms terms = begins_window ? terms_of(means, weight, row) : WindowTerms{};
        maps.set(row, thread, terms);
        if (is_own && row - kReach >= first) value = weights.dssim * terms.loss;
      }
    }

    const int out = row - kWindow;
    if (out >= begin && is_own) {
      const bool has_windows = row <= read_end;
      const WindowTerms across = has_windows ? maps.across(row - 1, thread) : WindowTerms{};
      const WindowTerms sums{0.0f, constant.push(across.constant), by_error.push(across.by_error),
                             by_image.push(across.by_image)};
      if (out >= first) {
        const Pixel own = ring[out % kRing][thread];
        float by_l1 = 0.0f;
        if (is_in_core && out >= core.y0 && out < core.y1) {
          value += weights.l1 * fabsf(own.error);
          by_l1 = own.error > 0.0f ? weights.l1 : own.error < 0.0f ? -weights.l1 : 0.0f;
        }
        const float of_ssim =
            sums.constant - sums.by_error * own.error + sums.by_image * own.image();
        gradient[std::int64_t{out} * n + column] =
            !kMasked || own.counts() ? by_l1 - weights.dssim * of_ssim : 0.0f;
      }
    }
    share.add(value);
    __syncthreads();
  }
  const double sum = block_sum(share.value());
  if (thread == 0) partials[block] = sum;
}

/// One block.
__global__ void __launch_bounds__(kThreads)
    sum_partials_kernel(const double* __restrict__ partials, std::int64_t n,
                        float* __restrict__ share) {
  double sum = 0.0;
  for (std::int64_t i = threadIdx.x; i < n; i += kThreads) sum += partials[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *share = static_cast<float>(sum);
}

}  // namespace

std::int64_t loss_partials(int width, int height) { return cut_image(width, height).n_blocks; }

void photometric_loss(const ImagePair& pair, bool has_mask, const Rect& core,
                      const LossWeights& weights, float* share, float* gradient, double* partials,
                      std::int64_t n_partials, cuda::StreamView stream) {
  const Cut cut = cut_image(pair.width, pair.height);
  GS_CHECK(n_partials >= cut.n_blocks, "partials must have ", cut.n_blocks, " doubles, got ",
           n_partials);
  if (cut.n_blocks != 0) {
    const auto kernel = has_mask ? loss_kernel<true> : loss_kernel<false>;
    kernel<<<static_cast<unsigned>(cut.n_blocks), kThreads, 0, stream.get()>>>(
        pair, core, weights, cut.strips, cut.rows, gradient, partials);
    GS_CUDA_TRY(cudaGetLastError());
  }
  sum_partials_kernel<<<1, kThreads, 0, stream.get()>>>(partials, cut.n_blocks, share);
  GS_CUDA_TRY(cudaGetLastError());
}

}  // namespace gs::raster
