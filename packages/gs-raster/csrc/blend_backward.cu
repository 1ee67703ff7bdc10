// SPDX-License-Identifier: Apache-2.0
// The gradient in two phases, a group of splats at a time, back to front. First each thread is a
// pixel: it takes the group's splats off its transmittance and leaves two numbers a splat, the
// gradient of sigma and the blending weight. Then each thread is a splat and a column of pixels,
// and sums what the pixels left. So a sum over 256 pixels takes 15 exchanges between threads, not
// five for each number and warp, and its order is fixed.
#include "blend.hpp"
#include "gs/cuda/check.hpp"
#include "launch.cuh"
#include "pixel.cuh"

namespace gs::raster {

namespace {

constexpr int kGroup = kTilePixels / kTile;  // splats: with a column of pixels, one a thread
// Floats from one splat's pixels to the next one's. The two splats of a warp then read from
// different banks.
constexpr int kPitch = kTilePixels + kTile;

/// What a group of splats leaves behind for the second phase.
struct Group {
  float4 means[kGroup], conics[kGroup], colors[kGroup];
  float of_sigma[kGroup * kPitch], weight[kGroup * kPitch];
  alignas(8) std::uint8_t drawn[kGroup][kWarps];  // whether a warp has pixels that draw the splat
};

__device__ __forceinline__ int max_of_warp(int value) {
#pragma unroll
  for (int half = 16; half >= 1; half /= 2)
    value = max(value, __shfl_xor_sync(kFullMask, value, half));
  return value;
}

/// Sums each of 16 numbers over 16 neighbouring lanes; lane l gets the sum of number l.
__device__ __forceinline__ float sum_columns(float (&values)[kTile], int lane) {
#pragma unroll
  for (int half = kTile / 2; half >= 1; half /= 2) {
    const bool upper = (lane & half) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float give = upper ? values[i] : values[i + half];
      const float keep = upper ? values[i + half] : values[i];
      values[i] = keep + __shfl_xor_sync(kFullMask, give, half);
    }
  }
  return values[0];
}

template <bool kDepth, bool kAbsgrad>
__global__ void __launch_bounds__(kTilePixels)
    blend_backward_kernel(const Splat* __restrict__ splats,
                          const std::uint32_t* __restrict__ begins,
                          const std::int32_t* __restrict__ ids,
                          const std::int32_t* __restrict__ slot_of, Rect rect,
                          const float* __restrict__ background,  // (3,) or none
                          Pixels pixels, PixelGradients of_pixels,
                          float* __restrict__ slots) {  // (room, width)
  constexpr int kWidth = slot_width({kDepth, kAbsgrad});
  __shared__ Group group;
  __shared__ float4 of_colors[kTilePixels];  // d loss / d (red, green, blue, depth) of a pixel
  const TilePixel pixel(rect, Grid(rect));
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const float x = static_cast<float>(pixel.x) + 0.5f, y = static_cast<float>(pixel.y) + 0.5f;
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
  of_colors[thread] = of_color;
  const int deepest_of_warp = max_of_warp(last);
  __shared__ int deepest_of_warps[kWarps];
  if (lane == 0) deepest_of_warps[warp] = deepest_of_warp;
  __syncthreads();
  int deepest = -1;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) deepest = max(deepest, deepest_of_warps[w]);

  // Splats that no pixel came to.
  for (int k = deepest + 1 + thread / kTile; k < n; k += kGroup)
    if (thread % kTile < kWidth)
      slots[static_cast<std::int64_t>(slot_of[begin + k]) * kWidth + thread % kTile] = 0.0f;

  for (int end = deepest + 1; end > 0; end -= kGroup) {
    const int first = max(end - kGroup, 0), n_here = end - first;
    __syncthreads();
    if (thread < n_here) {
      const TileSplat splat =
          load_splat(splats, ids[begin + first + thread], static_cast<float>(pixel.top));
      group.means[thread] = splat.mean;
      group.conics[thread] = splat.conic;
      group.colors[thread] = splat.color;
    }
    __syncthreads();

    for (int k = n_here - 1; k >= 0; --k) {
      const float4 conic = group.conics[k];
      bool drawn = first + k <= deepest_of_warp && (__float_as_uint(conic.w) >> warp & 1u) != 0;
      if (drawn) {
        const float4 mean = group.means[k];
        const float peak = first + k <= last ? peak_at(mean, conic, x, y) : 0.0f;
        float of_sigma = 0.0f, weight = 0.0f;
        if (peak != 0.0f) {
          const float4 color = group.colors[k];
          const float alpha = fminf(peak, kMaxAlpha);
          const float rest = 1.0f / (1.0f - alpha);
          transmittance *= rest;
          weight = alpha * transmittance;
          float shade = color.x * of_color.x + color.y * of_color.y + color.z * of_color.z;
          if (kDepth) shade += mean.w * of_color.w;
          const float of_alpha = transmittance * shade - rest * behind;
          behind += weight * shade;
          if (peak <= kMaxAlpha) of_sigma = -peak * of_alpha;
        }
        drawn = __any_sync(kFullMask, peak != 0.0f);
        if (drawn) {
          group.of_sigma[k * kPitch + thread] = of_sigma;
          group.weight[k * kPitch + thread] = weight;
        }
      }
      if (lane == 0) group.drawn[k][warp] = drawn;
    }
    __syncthreads();

    const int k = thread / kTile, column = thread % kTile;
    float s = 0.0f, s_y = 0.0f, s_yy = 0.0f, red = 0.0f, green = 0.0f, blue = 0.0f, depth = 0.0f;
    float abs_x = 0.0f, abs_y = 0.0f, dx = 0.0f;
    float4 mean = {}, conic = {};
    if (k < n_here) {
      mean = group.means[k];
      conic = group.conics[k];
      dx = mean.x - (static_cast<float>(pixel.left + column) + 0.5f);
      const std::uint64_t drawn = *reinterpret_cast<const std::uint64_t*>(group.drawn[k]);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if ((drawn >> (8 * w) & 1u) == 0) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = 2 * w + half, at = row * kTile + column;
          const float of_sigma = group.of_sigma[k * kPitch + at];
          const float weight = group.weight[k * kPitch + at];
          const float4 of = of_colors[at];
          const float dy = mean.y - (static_cast<float>(pixel.top + row) + 0.5f);
          const float by_y = of_sigma * dy;
          s += of_sigma;
          s_y += by_y;
          s_yy += by_y * dy;
          red += weight * of.x;
          green += weight * of.y;
          blue += weight * of.z;
          if (kDepth) depth += weight * of.w;
          if (kAbsgrad) {
            abs_x += fabsf(of_sigma * (conic.x * dx + conic.y * dy));
            abs_y += fabsf(of_sigma * (conic.y * dx + conic.z * dy));
          }
        }
      }
    }
    float values[kTile] = {conic.x * s * dx + conic.y * s_y,
                           conic.y * s * dx + conic.z * s_y,
                           0.5f * s * dx * dx,
                           s_y * dx,
                           0.5f * s_yy,
                           s == 0.0f ? 0.0f : -s / mean.z,
                           red,
                           green,
                           blue};
    if (kDepth) values[9] = depth;
    if (kAbsgrad) {
      values[kWidth - 2] = abs_x;
      values[kWidth - 1] = abs_y;
    }
    const float sum = sum_columns(values, lane);
    if (k < n_here && column < kWidth)
      slots[static_cast<std::int64_t>(slot_of[begin + first + k]) * kWidth + column] = sum;
  }
}

/// 16 lanes a splat, one a number of its slots.
template <bool kDepth, bool kAbsgrad>
__global__ void __launch_bounds__(kThreads)
    sum_slots_kernel(const float* __restrict__ slots, const std::uint32_t* __restrict__ firsts,
                     const std::uint32_t* __restrict__ counts, std::int64_t n, bool add,
                     SplatGradient* __restrict__ gradients) {
  constexpr int kWidth = slot_width({kDepth, kAbsgrad});
  constexpr int kWords = sizeof(SplatGradient) / sizeof(float), kAhead = 8;
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kTile;
  const int word = static_cast<int>(threadIdx.x) % kTile;
  if (i >= n || word >= kWords) return;
  // Words of the gradient to numbers of a slot, which has no room for what is not computed.
  const bool there = word < 9 || (word == 9 && kDepth) || (word >= 10 && kAbsgrad);
  const int number = word >= 10 ? word - (kDepth ? 0 : 1) : word;
  float* const out = reinterpret_cast<float*>(gradients + i) + word;
  if (!there) {
    if (!add) *out = 0.0f;
    return;
  }
  const float* slot = slots + static_cast<std::int64_t>(firsts[i]) * kWidth + number;
  std::uint32_t left = counts[i];
  float sums[kAhead] = {};
  for (; left >= kAhead; left -= kAhead, slot += kAhead * kWidth)
#pragma unroll
    for (int j = 0; j < kAhead; ++j) sums[j] += slot[j * kWidth];
  for (; left > 0; --left, slot += kWidth) sums[0] += *slot;
  const float sum =
      ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  *out = add ? *out + sum : sum;
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
  sum_slots_kernel<kDepth, kAbsgrad><<<blocks_for(n * kTile), kThreads, 0, stream>>>(
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
