// SPDX-License-Identifier: Apache-2.0
#include "blend.hpp"
#include "gs/cuda/check.hpp"
#include "pixel.cuh"

namespace gs::raster {

namespace {

/// One block a tile, one thread a pixel. A warp passes over splats that reach none of its pixels.
template <bool kDepth>
__global__ void __launch_bounds__(kTilePixels)
    blend_kernel(const Splat* __restrict__ splats, const std::uint32_t* __restrict__ begins,
                 const std::int32_t* __restrict__ ids, Rect rect,
                 const float* __restrict__ background,  // (3,) or none
                 Pixels pixels) {
  __shared__ Staged staged;
  const TilePixel pixel(rect, Grid(rect));
  const int thread = static_cast<int>(threadIdx.x), lane = TilePixel::lane(),
            warp = TilePixel::warp();
  const float x = static_cast<float>(pixel.x) + 0.5f, y = static_cast<float>(pixel.y) + 0.5f;
  const std::uint32_t begin = begins[pixel.tile];
  const int n = static_cast<int>(begins[pixel.tile + 1] - begin);

  float transmittance = 1.0f, red = 0.0f, green = 0.0f, blue = 0.0f, depth = 0.0f;
  std::int32_t last = -1;
  bool done = !pixel.inside;
  for (int first = 0; first < n; first += kBatch) {
    if (__syncthreads_and(done)) break;
    if (first + thread < n)
      staged.put(thread, load_splat(splats, ids[begin + first + thread], pixel.left, pixel.top));
    __syncthreads();
    const int n_here = min(kBatch, n - first);
    for (int group = 0; group < n_here; group += 32) {
      if (__all_sync(kWholeWarp, done)) break;
      const bool reached = group + lane < n_here && staged.reaches(group + lane, warp);
      for (unsigned left = __ballot_sync(kWholeWarp, reached); left != 0; left &= left - 1) {
        const int k = group + __ffs(static_cast<int>(left)) - 1;
        const float4 mean = staged.means[k];
        const float peak = peak_at(mean, staged.conics[k], x, y);
        if (done || peak == 0.0f) continue;
        const float alpha = fminf(peak, kMaxAlpha);
        const float after = __fmul_rn(transmittance, __fsub_rn(1.0f, alpha));
        if (after <= kMinTransmittance) {
          done = true;
          continue;
        }
        const float4 color = staged.colors[k];
        const float weight = alpha * transmittance;
        red += weight * color.x;
        green += weight * color.y;
        blue += weight * color.z;
        if (kDepth) depth += weight * mean.w;
        transmittance = after;
        last = first + k;
      }
    }
  }
  if (!pixel.inside) return;
  if (background != nullptr) {
    red += transmittance * background[0];
    green += transmittance * background[1];
    blue += transmittance * background[2];
  }
  float* const image = pixels.image + 3 * pixel.at;
  image[0] = red;
  image[1] = green;
  image[2] = blue;
  if (pixels.alpha != nullptr) pixels.alpha[pixel.at] = 1.0f - transmittance;
  pixels.transmittance[pixel.at] = transmittance;
  pixels.last[pixel.at] = last;
  if (kDepth) pixels.depth[pixel.at] = depth;
}

}  // namespace

void blend(const Splat* splats, const TileLists& lists, const Rect& rect, const float* background,
           const Pixels& pixels, cuda::StreamView stream) {
  if (rect.is_empty()) return;
  const auto n_tiles = static_cast<unsigned>(Grid(rect).n_tiles());
  const auto kernel = pixels.depth != nullptr ? &blend_kernel<true> : &blend_kernel<false>;
  kernel<<<n_tiles, kTilePixels, 0, stream.get()>>>(splats, lists.begins, lists.splats, rect,
                                                    background, pixels);
  GS_CUDA_TRY(cudaGetLastError());
}

}  // namespace gs::raster
