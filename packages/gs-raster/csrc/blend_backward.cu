// SPDX-License-Identifier: Apache-2.0
// The gradient, back to front, in two phases for each warp. First each lane is a pixel: it takes
// splats off its transmittance and leaves two numbers a splat, the gradient of sigma and the
// blending weight. When a few splats are together, four lanes are a splat, and each sums what a row
// of pixels left. So a sum over 32 pixels takes two exchanges between lanes, not five. The sums of
// a tile's warps are added in their order: the result has the same bits on every run.
#include "blend.hpp"
#include "gs/cuda/check.hpp"
#include "launch.cuh"
#include "pixel.cuh"

namespace gs::raster {

namespace {

// More hide each other's waits, fewer have more registers.
constexpr int kBlocksPerMultiprocessor = 4;
constexpr int kWindow = 32;             // splats between two sums over the warps
constexpr int kQueue = 32 / kWarpRows;  // splats that a warp gathers: with a row of pixels, a lane
// Floats from one splat's pixels to the next one's: lanes read from different banks.
constexpr int kPitch = 33;
// Places of pixels in `of_colors`, likewise.
__device__ __forceinline__ int color_place(int pixel) { return pixel + pixel / kWarpColumns; }

/// What the pixels of a warp leave of the splats in its queue.
struct Queue {
  float of_sigma[kQueue * kPitch], weight[kQueue * kPitch];
};

__device__ __forceinline__ int max_of_warp(int value) {
#pragma unroll
  for (int half = 16; half >= 1; half /= 2)
    value = max(value, __shfl_xor_sync(kWholeWarp, value, half));
  return value;
}

/// Sums over the pixels of a warp for the splats in its queue, into sums[k][number].
///
/// mine: of lane q < n, the place in the window of the queue's splat q.
template <int kWidth, bool kDepth, bool kAbsgrad>
__device__ __forceinline__ void sum_queue(const Queue& queue, int n, int mine, const Staged& staged,
                                          int window,
                                          const float4* of_colors,  // of the warp's pixels
                                          float left, float top,    // its first pixel's centre
                                          float (*sums)[kWidth]) {
  const int q = TilePixel::lane() / kWarpRows, row = TilePixel::lane() % kWarpRows;
  const int k = __shfl_sync(kWholeWarp, mine, q);
  float values[kWidth] = {};
  if (q < n) {
    const float4 mean = staged.means[window + k], conic = staged.conics[window + k];
    const float dy = mean.y - (top + static_cast<float>(row));
    float s = 0.0f, s_x = 0.0f, s_xx = 0.0f;
#pragma unroll
    for (int column = 0; column < kWarpColumns; ++column) {
      const int pixel = row * kWarpColumns + column;
      const float of_sigma = queue.of_sigma[q * kPitch + pixel];
      const float weight = queue.weight[q * kPitch + pixel];
      const float4 of_color = of_colors[color_place(pixel)];
      const float dx = mean.x - (left + static_cast<float>(column));
      const float by_x = of_sigma * dx;
      s += of_sigma;
      s_x += by_x;
      s_xx += by_x * dx;
      values[6] += weight * of_color.x;
      values[7] += weight * of_color.y;
      values[8] += weight * of_color.z;
      if (kDepth) values[9] += weight * of_color.w;
      if (kAbsgrad) {
        values[kWidth - 2] += fabsf(of_sigma * (conic.x * dx + conic.y * dy));
        values[kWidth - 1] += fabsf(of_sigma * (conic.y * dx + conic.z * dy));
      }
    }
    values[0] = conic.x * s_x + conic.y * s * dy;
    values[1] = conic.y * s_x + conic.z * s * dy;
    values[2] = 0.5f * s_xx;
    values[3] = s_x * dy;
    values[4] = 0.5f * s * dy * dy;
    values[5] = s == 0.0f ? 0.0f : -s / mean.z;
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
#pragma unroll
    for (int half = kWarpRows / 2; half >= 1; half /= 2)
      values[i] += __shfl_xor_sync(kWholeWarp, values[i], half);
  if (q < n && row == 0)
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[k][i] = values[i];
}

/// One object, as Staged.
template <int kWidth>
struct Shared {
  Staged staged;
  Queue queues[kWarps];
  float4 of_colors[kWarps][32 + kWarpRows];  // d loss / d (rgb, depth) of each pixel
  float sums[kWarps][kWindow][kWidth];
  unsigned drawn[kWarps];  // splats of the window that pixels of the warp draw
  int deepest_of_warps[kWarps];
};

template <bool kDepth, bool kAbsgrad>
__global__ void __launch_bounds__(kTilePixels, kBlocksPerMultiprocessor)
    blend_backward_kernel(const Splat* __restrict__ splats,
                          const std::uint32_t* __restrict__ begins,
                          const std::int32_t* __restrict__ ids,
                          const std::int32_t* __restrict__ slot_of, Rect rect,
                          const float* __restrict__ background,  // (3,) or none
                          Pixels pixels, PixelGradients of_pixels,
                          float* __restrict__ slots) {  // (room, width)
  constexpr int kWidth = slot_width({kDepth, kAbsgrad});
  __shared__ Shared<kWidth> shared;
  Staged& staged = shared.staged;
  Queue& queue = shared.queues[TilePixel::warp()];
  const TilePixel pixel(rect, Grid(rect));
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = TilePixel::lane(), warp = TilePixel::warp();
  const float x = static_cast<float>(pixel.x) + 0.5f, y = static_cast<float>(pixel.y) + 0.5f;
  const float left = __shfl_sync(kWholeWarp, x, 0), top = __shfl_sync(kWholeWarp, y, 0);
  const std::uint32_t begin = begins[pixel.tile];
  const int n = static_cast<int>(begins[pixel.tile + 1] - begin);
  if (n == 0) return;

  float transmittance = 1.0f, behind = 0.0f;
  float4 of_color = {0.0f, 0.0f, 0.0f, 0.0f};
  int last = -1;
  if (pixel.inside) {
    transmittance = pixels.transmittance[pixel.at];
    last = pixels.last[pixel.at];
    if (of_pixels.image != nullptr) {
      const float* const of_image = of_pixels.image + 3 * pixel.at;
      of_color = {of_image[0], of_image[1], of_image[2], 0.0f};
      if (background != nullptr)
        behind = transmittance * (of_color.x * background[0] + of_color.y * background[1] +
                                  of_color.z * background[2]);
    }
    if (kDepth) of_color.w = of_pixels.depth[pixel.at];
    if (of_pixels.alpha != nullptr) behind -= transmittance * of_pixels.alpha[pixel.at];
  }
  shared.of_colors[warp][color_place(lane)] = of_color;
  const int deepest_of_warp = max_of_warp(last);
  if (lane == 0) shared.deepest_of_warps[warp] = deepest_of_warp;
  __syncthreads();
  int deepest = -1;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) deepest = max(deepest, shared.deepest_of_warps[w]);

  // Splats that no pixel came to.
  for (int k = deepest + 1 + thread / kTile; k < n; k += kTilePixels / kTile)
    if (thread % kTile < kWidth)
      slots[static_cast<std::int64_t>(slot_of[begin + k]) * kWidth + thread % kTile] = 0.0f;

  for (int end = deepest + 1; end > 0; end -= kBatch) {
    const int first = max(end - kBatch, 0), n_here = end - first;
    if (thread < n_here)
      staged.put(thread, load_splat(splats, ids[begin + first + thread], pixel.left, pixel.top));
    __syncthreads();

    int window = (n_here - 1) / kWindow * kWindow;
    int last_of_window = last - (first + window);  // the pixel's, counted from the window's first
    for (; window >= 0; window -= kWindow, last_of_window += kWindow) {
      const int n_window = min(kWindow, n_here - window);
      const bool reached = lane < n_window && first + window + lane <= deepest_of_warp &&
                           staged.reaches(window + lane, warp);
      unsigned its = 0;
      int n_queued = 0, mine = 0;
      unsigned rest = __ballot_sync(kWholeWarp, reached);
      while (rest != 0) {
        const int k = 31 - __clz(static_cast<int>(rest));
        const unsigned bit = 1u << k;
        rest ^= bit;
        const float4 mean = staged.means[window + k];
        float peak = peak_at(mean, staged.conics[window + k], x, y);
        if (k > last_of_window) peak = 0.0f;
        if (!__any_sync(kWholeWarp, peak != 0.0f)) continue;
        float of_sigma = 0.0f, weight = 0.0f;
        if (peak != 0.0f) {
          const float4 color = staged.colors[window + k];
          const float alpha = fminf(peak, kMaxAlpha);
          const float by = __fdividef(1.0f, 1.0f - alpha);
          transmittance *= by;
          weight = alpha * transmittance;
          float shade = color.x * of_color.x + color.y * of_color.y + color.z * of_color.z;
          if (kDepth) shade += mean.w * of_color.w;
          const float of_alpha = transmittance * shade - by * behind;
          behind += weight * shade;
          if (peak <= kMaxAlpha) of_sigma = -peak * of_alpha;
        }
        queue.of_sigma[n_queued * kPitch + lane] = of_sigma;
        queue.weight[n_queued * kPitch + lane] = weight;
        if (lane == n_queued) mine = k;
        its |= bit;
        if (++n_queued == kQueue) {
          __syncwarp();
          sum_queue<kWidth, kDepth, kAbsgrad>(queue, n_queued, mine, staged, window,
                                              shared.of_colors[warp], left, top, shared.sums[warp]);
          __syncwarp();
          n_queued = 0;
        }
      }
      if (n_queued != 0) {
        __syncwarp();
        sum_queue<kWidth, kDepth, kAbsgrad>(queue, n_queued, mine, staged, window,
                                            shared.of_colors[warp], left, top, shared.sums[warp]);
      }
      if (lane == 0) shared.drawn[warp] = its;
      __syncthreads();

      const int k = thread / kWarps;
      if (k < n_window) {
        const std::int64_t slot = slot_of[begin + first + window + k];
#pragma unroll
        for (int i = thread % kWarps; i < kWidth; i += kWarps) {
          float sum = 0.0f;
#pragma unroll
          for (int w = 0; w < kWarps; ++w)
            if ((shared.drawn[w] >> k & 1u) != 0) sum += shared.sums[w][k][i];
          slots[slot * kWidth + i] = sum;
        }
      }
      __syncthreads();
    }
  }
}

constexpr int kLanes = kTile;               // lanes of a splat: one a number of its slots
constexpr int kSplats = kThreads / kLanes;  // of a block
// A splat of more slots is summed by all lanes of the block.
constexpr std::uint32_t kManySlots = 128;

/// Sum of n numbers, kStep floats from one to the next. The order depends on n alone.
template <int kStep>
__device__ __forceinline__ float sum_of(const float* number, std::uint32_t n) {
  constexpr int kAhead = 8;
  float sums[kAhead] = {};
  for (; n >= kAhead; n -= kAhead, number += kAhead * kStep)
#pragma unroll
    for (int j = 0; j < kAhead; ++j) sums[j] += number[j * kStep];
  for (; n > 0; --n, number += kStep) sums[0] += *number;
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

template <bool kDepth, bool kAbsgrad>
__global__ void __launch_bounds__(kThreads)
    sum_slots_kernel(float* slots, const std::uint32_t* __restrict__ firsts,
                     const std::uint32_t* __restrict__ counts, std::int64_t n, bool add,
                     SplatGradient* __restrict__ gradients) {  // (n,) or none
  constexpr int kWidth = slot_width({kDepth, kAbsgrad});
  constexpr int kWords = sizeof(SplatGradient) / sizeof(float);
  __shared__ float parts[kSplats][kSplats][kWidth];  // of a splat, every kSplats-th slot
  const int word = static_cast<int>(threadIdx.x) % kLanes;
  const int mine = static_cast<int>(threadIdx.x) / kLanes;
  // Neighbours, which tend to be large together, go to different blocks.
  const auto splat_of_block = [](int k) -> std::int64_t {
    return static_cast<std::int64_t>(k) * gridDim.x + blockIdx.x;
  };
  const std::int64_t i = splat_of_block(mine);
  const std::uint32_t count = i < n ? counts[i] : 0;
  // Words of the gradient to numbers of a slot, which has no room for what is not computed.
  const bool there = word < 9 || (word == 9 && kDepth) || (word >= 10 && word < kWords && kAbsgrad);
  const int number = word >= 10 ? word - (kDepth ? 0 : 1) : word;
  const auto numbers_from = [&](std::uint32_t slot) {
    return slots + static_cast<std::int64_t>(slot) * kWidth + number;
  };

  float sum = 0.0f;
  if (there && count != 0 && count <= kManySlots)
    sum = sum_of<kWidth>(numbers_from(firsts[i]), count);
  if (__syncthreads_or(count > kManySlots)) {
    for (int k = 0; k < kSplats && splat_of_block(k) < n; ++k) {
      const std::uint32_t its_count = counts[splat_of_block(k)];
      if (!there || its_count <= kManySlots) continue;
      parts[k][mine][number] =
          sum_of<kSplats * kWidth>(numbers_from(firsts[splat_of_block(k)] + mine),
                                   (its_count - mine + kSplats - 1) / kSplats);
    }
    __syncthreads();
    if (there && count > kManySlots)
      for (int part = 0; part < kSplats; ++part) sum += parts[mine][part][number];
  }
  if (gradients == nullptr) {
    // Nobody reads the number that is written over: a lane reads one number of its splat's slots,
    // and of many slots all lanes have read.
    if (there && count != 0) *numbers_from(firsts[i]) = sum;
    return;
  }
  if (i >= n || word >= kWords) return;
  float* const out = reinterpret_cast<float*>(gradients + i) + word;
  if (!add)
    *out = sum;
  else if (there)
    *out += sum;
}

template <bool kDepth, bool kAbsgrad>
void run(const Splat* splats, std::int64_t n, const TileLists& lists, const Rect& rect,
         const float* background, const Pixels& pixels, const PixelGradients& of_pixels,
         float* slots, SplatGradient* gradients, bool add, cudaStream_t stream) {
  if (!rect.is_empty()) {
    const auto n_tiles = static_cast<unsigned>(Grid(rect).n_tiles());
    blend_backward_kernel<kDepth, kAbsgrad>
        <<<n_tiles, kTilePixels, 0, stream>>>(splats, lists.begins, lists.splats, lists.slots, rect,
                                              background, pixels, of_pixels, slots);
    GS_CUDA_TRY(cudaGetLastError());
  }
  sum_slots_kernel<kDepth, kAbsgrad><<<blocks_for(n * kLanes), kThreads, 0, stream>>>(
      slots, lists.firsts, lists.counts, n, add, gradients);
  GS_CUDA_TRY(cudaGetLastError());
}

}  // namespace

void blend_backward(const Splat* splats, std::int64_t n, const TileLists& lists, const Rect& rect,
                    const float* background, const Pixels& pixels, const PixelGradients& of_pixels,
                    const Extras& extras, float* slots, SplatGradient* gradients, bool add,
                    cuda::StreamView stream) {
  if (n == 0) return;
  const auto call = extras.depth ? (extras.absgrad ? &run<true, true> : &run<true, false>)
                                 : (extras.absgrad ? &run<false, true> : &run<false, false>);
  call(splats, n, lists, rect, background, pixels, of_pixels, slots, gradients, add, stream.get());
}

}  // namespace gs::raster
