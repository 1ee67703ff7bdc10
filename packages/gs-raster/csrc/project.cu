// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "by_degree.cuh"
#include "gs/cuda/check.hpp"
#include "harmonics.cuh"
#include "project.hpp"
#include "projection.cuh"
#include "row_geometry.cuh"
#include "warp_rows.cuh"

namespace gs::raster {

namespace {

constexpr int kThreads = 128, kBlocks = 8;  // blocks that a multiprocessor holds together

/// Writes the splats of a warp's rows, n of them: whole lines, by way of shared memory.
__device__ __forceinline__ void write_splats(const Splat& mine, int n, float4* staged,
                                             Splat* splats) {
  constexpr int kQuarters = kSplatWords / 4;
  const int lane = threadIdx.x % kWarp;
  float4* const words = staged + lane * kQuarters;
  words[0] = {mine.x, mine.y, mine.opacity, mine.depth};
  words[1] = {mine.xx, mine.xy, mine.yy, __uint_as_float(mine.columns)};
  words[2] = {mine.red, mine.green, mine.blue, __uint_as_float(mine.rows)};
  __syncwarp();
  float4* const out = reinterpret_cast<float4*>(splats);
#pragma unroll
  for (int k = 0; k < kQuarters; ++k)
    if (lane + k * kWarp < n * kQuarters) out[lane + k * kWarp] = staged[lane + k * kWarp];
}

template <int kDegree>
__global__ void __launch_bounds__(kThreads, kBlocks)
    project_kernel(Rows rows, View view, Options options,
                   Splat* __restrict__ splats,        // (n,)
                   std::int32_t* __restrict__ radii,  // (n, 2) or none
                   DepthKeys keys) {
  constexpr int kWords = 3 * kFunctions<kDegree>, kPitch = kStagedPitch<kWords>;
  constexpr int kStaged = kWarp * (kPitch > kSplatWords ? kPitch : kSplatWords);
  __shared__ Camera camera;
  __shared__ __align__(16) float staged_rows[kThreads / kWarp][kStaged];
  float* const staged = staged_rows[threadIdx.x / kWarp];
  const int lane = threadIdx.x % kWarp;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool exists = i < rows.n;

  if (threadIdx.x == 0) camera = make_camera(view.viewmat, view.K, view.width, view.height);
  std::int32_t sh_slot = 0;
  Geometry row{};
  if (exists) {
    sh_slot = index_of(rows.sh_slots, i);
    row = load_geometry(rows, index_of(rows.slots, i));
  }
  __syncthreads();

  Splat splat{};
  Radii radius{};
  bool shows = exists && camera.is_valid && project_row(camera, options, row, &splat, &radius);
  stage_rows<kWords>(harmonic_words(rows.sh0, rows.shN, lane), sh_slot,
                     __ballot_sync(kWholeWarp, shows), staged);
  __syncwarp();
  shows =
      shows && color_row<kDegree>(from_camera(camera, row.mean), staged + lane * kPitch, &splat);
  if (!shows) {
    splat = Splat{};
    radius = Radii{};
  }
  __syncwarp();
  const std::int64_t first = i - lane;
  const int n = static_cast<int>(max(min(rows.n - first, std::int64_t{kWarp}), std::int64_t{0}));
  write_splats(splat, n, reinterpret_cast<float4*>(staged), splats + first);
  if (exists && radii != nullptr) {
    radii[2 * i] = radius.x;
    radii[2 * i + 1] = radius.y;
  }
  if (i < keys.n) put_depth_key(keys, i, splat.columns, splat.depth);
}

}  // namespace

void project(const Rows& rows, const View& view, const Options& options, int sh_degree,
             Splat* splats, std::int32_t* radii, const DepthKeys& keys, cuda::StreamView stream) {
  const std::int64_t n = std::max(rows.n, keys.n);
  if (n == 0) return;
  const auto blocks = static_cast<unsigned>((n + kThreads - 1) / kThreads);
  with_degree(sh_degree, [&](auto degree) {
    project_kernel<degree()>
        <<<blocks, kThreads, 0, stream.get()>>>(rows, view, options, splats, radii, keys);
  });
  GS_CUDA_TRY(cudaGetLastError());
}

}  // namespace gs::raster
