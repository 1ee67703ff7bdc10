// SPDX-License-Identifier: Apache-2.0
// What the kernels that test rows share: views in the words of a mask, cameras from gsplat's
// matrices, and one compiled kernel for each camera model.
#pragma once

#include <type_traits>

#include "row_test.hpp"

namespace gs::cull {

namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor =
    3;  // of the kernels that test rows; limits registers to 80

/// Views of one launch: their sizes travel as kernel parameters, of which there are 4 KiB.
constexpr int kViewsPerLaunch = 128;

struct Sizes {
  float values[6 * kViewsPerLaunch];
};

__host__ __device__ inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Views in word w of a mask.
__device__ inline int views_in_word(int n_views, int w) {
  const int left = n_views - 32 * w;
  return left < 32 ? left : 32;
}

/// The bits of the first n views of a word, 0 < n <= 32.
__device__ inline std::uint32_t first_bits(int n) { return 0xffffffffu >> (32 - n); }

/// Fills `camera` of view i of a launch. A faulty view gets a camera that sees no row: the host
/// learns of the fault only where it waits for the device.
///
/// A function of its own, as its numbers of double precision would take registers from the test of
/// rows; `options` by value, so that a kernel's own stay constants.
__device__ __noinline__ CameraFault view_camera(const float* viewmats, const float* Ks, float width,
                                                float height, float4 rect, int i, Options options,
                                                Camera* camera) {
  const float corners[4] = {rect.x, rect.y, rect.z, rect.w};
  const CameraFault fault =
      make_camera(viewmats + 16 * i, Ks + 9 * i, width, height, corners, options, camera);
  if (fault != CameraFault::kNone) {
    camera->planes[0] = {{0, 0, 0}, -1, 0, 0, 0};
    camera->n_planes = 1;
  }
  return fault;
}

__device__ inline CameraFault view_camera(const float* viewmats, const float* Ks,
                                          const Sizes& sizes, int i, const Options& options,
                                          Camera* camera) {
  const float* size = sizes.values + 6 * i;
  return view_camera(viewmats, Ks, size[0], size[1], {size[2], size[3], size[4], size[5]}, i,
                     options, camera);
}

/// Calls f with the camera model as a constant of the compiler.
template <class F>
void for_model(CameraModel model, F&& f) {
  switch (model) {
    case CameraModel::kPinhole:
      return f(std::integral_constant<CameraModel, CameraModel::kPinhole>());
    case CameraModel::kOrtho:
      return f(std::integral_constant<CameraModel, CameraModel::kOrtho>());
    case CameraModel::kFisheye:
      return f(std::integral_constant<CameraModel, CameraModel::kFisheye>());
  }
}

}  // namespace

}  // namespace gs::cull
