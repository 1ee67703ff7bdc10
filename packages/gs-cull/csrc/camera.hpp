// SPDX-License-Identifier: Apache-2.0
// A view as the culling tests see it: pose, intrinsics, the pixels that count, and bounding planes.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define GS_CULL_HD __host__ __device__ __forceinline__
#else
#define GS_CULL_HD inline
#endif

namespace gs::cull {

enum class CameraModel : std::int32_t { kPinhole = 0, kOrtho = 1, kFisheye = 2 };

/// What holds for all views and rows of one call.
struct Options {
  float near_plane, far_plane;
  float eps2d;        // pixel^2 added to the diagonal of the 2D covariance
  float radius_clip;  // pixels
  CameraModel model;
  bool activated;    // scales and opacities are not logarithms and logits
  bool antialiased;  // opacities are multiplied by the compensation of the blur
  // The most that one component of an attribute may move, in the units of the arrays.
  float move_means, move_scales, move_quats, move_opacities;

  GS_CULL_HD bool moves() const {
    return move_means > 0 || move_scales > 0 || move_quats > 0 || move_opacities > 0;
  }
};

/// Rows with dot(n, mean) + d + k * s_max + margin < 0 cannot show, where s_max is the largest
/// scale and margin a small multiple of n_abs * |mean|_1 + d_abs that covers rounding.
///
/// Aligned so that a device reads it in two loads.
struct alignas(16) Plane {
  float n[3], d;
  float k, n_abs, d_abs;
};

constexpr int kPlanes = 6;

struct Camera {
  float R[9], t[3];                                  // world to camera, row-major
  float fx, fy, cx, cy;                              // pixels
  float x0, y0, x1, y1;                              // the rectangle of pixels that counts
  float lim_x_neg, lim_x_pos, lim_y_neg, lim_y_pos;  // where x/z and y/z are clamped
  float stretch;  // bound of the operator norm of R; 1 for a rotation
  std::int32_t n_planes;
  Plane planes[kPlanes];
};

/// What make_camera() found wrong.
enum class CameraFault : std::int32_t { kNone = 0, kPoseNotFinite = 1, kSingularIntrinsics = 2 };

// Standard deviations that gsplat's box spans at most.
constexpr float kExtent = 3.33f;

// Rounding. u = 2^-24 is half an ulp of 1. gsplat (with -use_fast_math), its torch reference and
// this code each evaluate the formulas once; a constant bounds the sum of two such errors, with
// room to spare.
constexpr float kRelative = 2e-6f;       // 33 u: a few operations, exp, sqrt, fast division
constexpr float kPosition = 8e-7f;       // 13 u of |R||p| + |t|: six operations, twice
constexpr float kPlaneMargin = 1.2e-6f;  // 20 u: the same, folded with the intrinsics
constexpr float kCovariance = 2e-5f;     // 340 u of |j|^2 s_max^2: see row_test.hpp

namespace detail {

/// The plane of dot(a, camera-space point) + b + k * s_max >= 0, seen from the world. `a_abs` and
/// `b_abs` bound the terms that were added up to give a and b.
GS_CULL_HD Plane world_plane(const double* R, const double* t, const double a[3],
                             const double a_abs[3], double b, double b_abs, double k,
                             double move_means) {
  Plane plane;
  double d = b, d_abs = b_abs, n_abs = 0, n_sum = 0;
  for (int c = 0; c < 3; ++c) {
    double n = 0, bound = 0;
    for (int r = 0; r < 3; ++r) {
      n += a[r] * R[3 * r + c];
      bound += a_abs[r] * std::fabs(R[3 * r + c]);
    }
    plane.n[c] = static_cast<float>(n);
    n_abs = bound > n_abs ? bound : n_abs;
    n_sum += bound;
    d += a[c] * t[c];
    d_abs += a_abs[c] * std::fabs(t[c]);
  }
  plane.d = static_cast<float>(d + move_means * n_sum);
  plane.k = static_cast<float>(k);
  plane.n_abs = static_cast<float>(n_abs * 1.0001);
  plane.d_abs = static_cast<float>(d_abs * 1.0001);
  return plane;
}

}  // namespace detail

/// Fills `camera` from gsplat's matrices. The planes bound, for every row that gsplat would draw,
/// the half-spaces of the frustum grown by the row's extent:
///
/// - pinhole: u + r > x0 with r <= 1 + kExtent (sqrt(eps2d) + |j| s_max), |j| <= |fx| sqrt(1 +
///   lim^2) / z, times z > 0, is linear in the mean; so is the orthographic case;
/// - fisheye: the angle from the axis is at most that of the rectangle's corners plus the extent,
///   a cone grown by a multiple of s_max, and a pyramid of four planes holds the cone.
///
/// viewmat: (4, 4), K: (3, 3), row-major. rect: x0, y0, x1, y1 within the image.
GS_CULL_HD CameraFault make_camera(const float* viewmat, const float* K, double width,
                                   double height, const float* rect, const Options& options,
                                   Camera* camera) {
  double R[9], t[3], norm = 0;
  bool finite = true;
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 3; ++c) {
      R[3 * r + c] = viewmat[4 * r + c];
      camera->R[3 * r + c] = viewmat[4 * r + c];
      finite = finite && fabsf(viewmat[4 * r + c]) <= 3e38f;
    }
    t[r] = viewmat[4 * r + 3];
    camera->t[r] = viewmat[4 * r + 3];
    finite = finite && fabsf(viewmat[4 * r + 3]) <= 3e38f;
  }
  // |R|^2 = |R R^T| <= its largest row sum of absolute values.
  for (int r = 0; r < 3; ++r) {
    double sum = 0;
    for (int s = 0; s < 3; ++s)
      sum += std::fabs(R[3 * r] * R[3 * s] + R[3 * r + 1] * R[3 * s + 1] +
                       R[3 * r + 2] * R[3 * s + 2]);
    norm = sum > norm ? sum : norm;
  }
  const double stretch = std::sqrt(norm) * 1.0001;
  const double fx = K[0], fy = K[4], cx = K[2], cy = K[5];
  camera->fx = K[0];
  camera->fy = K[4];
  camera->cx = K[2];
  camera->cy = K[5];
  camera->stretch = static_cast<float>(stretch);
  camera->x0 = rect[0];
  camera->y0 = rect[1];
  camera->x1 = rect[2];
  camera->y1 = rect[3];
  camera->n_planes = 0;
  if (!finite) return CameraFault::kPoseNotFinite;
  const bool regular = fabsf(K[0]) > 0 && fabsf(K[0]) <= 3e38f && fabsf(K[4]) > 0 &&
                       fabsf(K[4]) <= 3e38f && fabsf(K[2]) <= 3e38f && fabsf(K[5]) <= 3e38f;
  if (!regular) return CameraFault::kSingularIntrinsics;

  const double tan_x = 0.5 * width / fx, tan_y = 0.5 * height / fy;
  const double limits[4] = {cx / fx + 0.3 * tan_x, (width - cx) / fx + 0.3 * tan_x,
                            cy / fy + 0.3 * tan_y, (height - cy) / fy + 0.3 * tan_y};
  camera->lim_x_neg = static_cast<float>(limits[0]);
  camera->lim_x_pos = static_cast<float>(limits[1]);
  camera->lim_y_neg = static_cast<float>(limits[2]);
  camera->lim_y_pos = static_cast<float>(limits[3]);

  const double move = options.move_means;
  Plane* plane = camera->planes;
  const double forward[3] = {0, 0, 1}, backward[3] = {0, 0, -1};
  *plane++ = detail::world_plane(R, t, forward, forward, -options.near_plane,
                                 fabsf(options.near_plane), 0, move);
  *plane++ = detail::world_plane(R, t, backward, forward, options.far_plane,
                                 fabsf(options.far_plane), 0, move);
  const double border = (1 + kExtent * std::sqrt(static_cast<double>(options.eps2d))) * 1.00001;
  const double grow = kExtent * stretch * 1.0001;
  const double f[2] = {fx, fy}, centre[2] = {cx, cy}, low[2] = {rect[0], rect[1]},
               high[2] = {rect[2], rect[3]};
  if (options.model == CameraModel::kFisheye) {
    double corner2 = 0, f_min = std::fabs(fx) < std::fabs(fy) ? std::fabs(fx) : std::fabs(fy);
    for (int axis = 0; axis < 2; ++axis) {
      const double a = std::fabs((low[axis] - centre[axis]) / f[axis]);
      const double b = std::fabs((high[axis] - centre[axis]) / f[axis]);
      corner2 += (a > b ? a : b) * (a > b ? a : b);
    }
    // sqrt(2) joins the extents of both axes; |j| <= 2.03 / |p| per axis in front of the camera.
    const double angle = (std::sqrt(corner2) + 1.4143 * border / f_min) * 1.0001 + 1e-4;
    if (options.near_plane > 0 && angle < 1.5) {
      const double c = std::cos(angle), s = std::sin(angle);
      for (int axis = 0; axis < 2; ++axis)
        for (int sign = -1; sign <= 1; sign += 2) {
          double a[3] = {0, 0, s}, a_abs[3] = {0, 0, s};
          a[axis] = sign * c;
          a_abs[axis] = c;
          *plane++ = detail::world_plane(R, t, a, a_abs, 0, 0, 1.4143 * 2.05 * grow, move);
        }
    }
  } else {
    const bool pinhole = options.model == CameraModel::kPinhole;
    for (int axis = 0; axis < 2; ++axis) {
      const double lim_a = std::fabs(limits[2 * axis]), lim_b = std::fabs(limits[2 * axis + 1]);
      const double lim = pinhole ? (lim_a > lim_b ? lim_a : lim_b) : 0;
      const double k = std::fabs(f[axis]) * std::sqrt(1 + lim * lim) * grow;
      for (int sign = -1; sign <= 1; sign += 2) {
        const double edge = sign > 0 ? centre[axis] - low[axis] : high[axis] - centre[axis];
        const double edge_abs =
            std::fabs(centre[axis]) + std::fabs(low[axis]) + std::fabs(high[axis]) + border;
        double a[3] = {0, 0, 0}, a_abs[3] = {0, 0, 0};
        a[axis] = sign * f[axis];
        a_abs[axis] = std::fabs(f[axis]);
        if (pinhole) {
          a[2] = edge + border;
          a_abs[2] = edge_abs;
        }
        *plane++ = detail::world_plane(R, t, a, a_abs, pinhole ? 0 : edge + border,
                                       pinhole ? 0 : edge_abs, k, move);
      }
    }
  }
  camera->n_planes = static_cast<std::int32_t>(plane - camera->planes);
  return CameraFault::kNone;
}

}  // namespace gs::cull
