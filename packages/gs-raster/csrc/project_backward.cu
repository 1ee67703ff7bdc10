// SPDX-License-Identifier: Apache-2.0
#include "by_degree.cuh"
#include "gs/cuda/check.hpp"
#include "harmonics.cuh"
#include "project.hpp"
#include "projection_gradient.cuh"
#include "row_geometry.cuh"
#include "warp_rows.cuh"

namespace gs::raster {

namespace {

constexpr int kThreads = 128, kBlocks = 5;  // blocks that a multiprocessor holds together

__device__ __forceinline__ SplatGradient load_gradient(const SplatGradient* gradient) {
  const float4* const words = reinterpret_cast<const float4*>(gradient);
  const float4 a = __ldg(words), b = __ldg(words + 1), c = __ldg(words + 2);
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
}

__device__ __forceinline__ SplatGradient load_gradient(const SplatGradients& gradients,
                                                       std::int64_t i) {
  if (gradients.records != nullptr) return load_gradient(gradients.records + i);
  SplatGradient found{};
  if (__ldg(gradients.counts + i) == 0) return found;
  const Extras& extras = gradients.extras;
  const float* const slot =
      gradients.slots + static_cast<std::int64_t>(__ldg(gradients.firsts + i)) * slot_width(extras);
  found.x = __ldg(slot), found.y = __ldg(slot + 1);
  found.xx = __ldg(slot + 2), found.xy = __ldg(slot + 3), found.yy = __ldg(slot + 4);
  found.opacity = __ldg(slot + 5);
  found.red = __ldg(slot + 6), found.green = __ldg(slot + 7), found.blue = __ldg(slot + 8);
  if (extras.depth) found.depth = __ldg(slot + 9);
  if (extras.absgrad) {
    const float* const absolute = slot + slot_width(extras) - 2;
    found.abs_x = __ldg(absolute), found.abs_y = __ldg(absolute + 1);
  }
  return found;
}

/// Adds one row of a view to what density control reads.
__device__ __forceinline__ void observe(const Statistics& statistics, const View& view,
                                        std::int32_t slot, const std::int32_t* radius,
                                        const SplatGradient& gradient) {
  const float x = statistics.absgrad ? gradient.abs_x : gradient.x;
  const float y = statistics.absgrad ? gradient.abs_y : gradient.y;
  statistics.grad2d[slot] += hypotf(x * statistics.scale_x, y * statistics.scale_y);
  statistics.count[slot] += 1.0f;
  if (statistics.extents == nullptr) return;
  const float extent = static_cast<float>(max(radius[0], radius[1])) /
                       static_cast<float>(max(view.width, view.height));
  statistics.extents[slot] = fmaxf(statistics.extents[slot], extent);
}

/// Where the gradients of a warp's rows go.
struct WarpPlaces {
  std::int32_t place;  // of the lane's own row
  unsigned exist;      // bit r: there is a row r
  unsigned active;     // bit r: and its gradient need not be 0
  bool add;
};

template <int kWords>
__device__ __forceinline__ void give_rows(const LaneWords<float>& words, int n_words,
                                          const WarpPlaces& places, const float* staged) {
  if (places.add)
    add_rows<kWords>(words, places.place, places.active, staged);
  else
    write_rows<kWords>(words, n_words, places.place, places.exist, places.active, staged);
}

template <int kDegree>
__global__ void __launch_bounds__(kThreads, kBlocks)
    project_backward_kernel(Rows rows, View view, Options options,
                            const Splat* __restrict__ splats,  // (n,)
                            SplatGradients gradients, RowGradients out, Statistics statistics) {
  if (out.skip != nullptr && __ldg(out.skip) != 0) return;
  constexpr int kWords = 3 * kFunctions<kDegree>;
  constexpr int kPitch = kStagedPitch<kWords>, kGeometryPitch = kStagedPitch<kGeometryWords>;
  constexpr int kStaged = kWarp * (kPitch > kGeometryPitch ? kPitch : kGeometryPitch);
  __shared__ Camera camera;
  __shared__ float staged_rows[kThreads / kWarp][kStaged];
  float* const staged = staged_rows[threadIdx.x / kWarp];
  const int lane = threadIdx.x % kWarp;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool exists = i < rows.n;

  if (threadIdx.x == 0) camera = make_camera(view.viewmat, view.K, view.width, view.height);
  // A splat that the image does not depend on, such as a hidden one, is as good as none.
  SplatGradient gradient{};
  std::int32_t slot = 0, sh_slot = 0, place = 0;
  if (exists) {
    slot = index_of(rows.slots, i);
    sh_slot = index_of(rows.sh_slots, i);
    place = index_of(out.places, i);
    if (__ldg(&splats[i].columns) != 0) {
      gradient = load_gradient(gradients, i);
      if (statistics.grad2d != nullptr)
        observe(statistics, view, slot, statistics.radii + 2 * i, gradient);
    }
  }
  const bool is_active = has_gradient(gradient);
  if (__syncthreads_count(is_active) == 0 && out.add) return;

  const WarpPlaces places{place, __ballot_sync(kWholeWarp, exists),
                          __ballot_sync(kWholeWarp, is_active), out.add};
  Geometry row{};
  if (is_active) row = load_geometry(rows, slot);

  stage_rows<kWords>(harmonic_words(rows.sh0, rows.shN, lane), sh_slot, places.active, staged);
  __syncwarp();
  Float3 by_color{};
  if (is_active)
    by_color =
        backward_color<kDegree>(from_camera(camera, row.mean), gradient, staged + lane * kPitch);
  __syncwarp();
  give_rows<kWords>(harmonic_words(out.sh0, out.shN, lane), 3 + 3 * rows.n_bases, places, staged);
  __syncwarp();
  if (is_active) {
    Geometry by_row = backward_row(camera, options, row, gradient);
    by_row.mean = by_row.mean + by_color;
    put_geometry(by_row, staged + lane * kGeometryPitch);
  }
  __syncwarp();
  give_rows<kGeometryWords>(geometry_words(out, lane), kGeometryWords, places, staged);
}

}  // namespace

void project_backward(const Rows& rows, const View& view, const Options& options, int sh_degree,
                      const Splat* splats, const SplatGradients& gradients, const RowGradients& out,
                      const Statistics& statistics, cuda::StreamView stream) {
  if (rows.n == 0) return;
  const auto blocks = static_cast<unsigned>((rows.n + kThreads - 1) / kThreads);
  with_degree(sh_degree, [&](auto degree) {
    project_backward_kernel<degree()><<<blocks, kThreads, 0, stream.get()>>>(
        rows, view, options, splats, gradients, out, statistics);
  });
  GS_CUDA_TRY(cudaGetLastError());
}

}  // namespace gs::raster
