// SPDX-License-Identifier: Apache-2.0
// One row to its 2D Gaussian: the EWA projection through a pinhole (Zwicker et al., EWA splatting,
// 2001), with the rules of gsplat 1.5.3 for what shows.
//
// With W the rotation of the camera, J the Jacobian of the projection at the row's centre, Q the
// row's rotation and S its scales, the 2D covariance is A A^T + eps2d I where A = J W Q S.
#pragma once

#include <cstdint>

#include "camera.cuh"
#include "splat.hpp"
#include "vec3.cuh"
#include "view.hpp"

namespace gs::raster {

struct Quaternion {
  float w;
  Float3 v;
};

/// A row's values as they are stored, or the gradients by them.
struct Geometry {
  Float3 mean;
  Float3 scale;  // logarithms
  Quaternion quat;
  float logit;
};

struct UnitQuaternion {
  Quaternion q;
  float inverse_norm;  // 1 / the length before
};

/// NaN for a quaternion of length 0. Divides by the largest component first, so that squares
/// neither overflow nor vanish.
GS_RASTER_HD UnitQuaternion normalise(const Quaternion& q) {
  const float largest = fmaxf(fmaxf(fabsf(q.w), fabsf(q.v.x)), fmaxf(fabsf(q.v.y), fabsf(q.v.z)));
  const float w = q.w / largest;
  const Float3 v{q.v.x / largest, q.v.y / largest, q.v.z / largest};
  const float inverse = 1.0f / sqrtf(w * w + dot(v, v));
  return {{w * inverse, v * inverse}, inverse / largest};
}

/// The rotation matrix of a unit quaternion; its columns are the row's axes.
GS_RASTER_HD Columns3 rotation(const Quaternion& q) {
  const float w = q.w, x = q.v.x, y = q.v.y, z = q.v.z;
  return {{1.0f - 2.0f * (y * y + z * z), 2.0f * (x * y + w * z), 2.0f * (x * z - w * y)},
          {2.0f * (x * y - w * z), 1.0f - 2.0f * (x * x + z * z), 2.0f * (y * z + w * x)},
          {2.0f * (x * z + w * y), 2.0f * (y * z - w * x), 1.0f - 2.0f * (x * x + y * y)}};
}

/// What a row's covariance is made of.
struct Factors {
  float z;
  float slope_x, slope_y;  // x / z and y / z in the camera
  UnitQuaternion unit;
  Columns3 Q;
  Float3 scale;
  Float3 JW0, JW1;  // rows of J W
  Float3 A0, A1;    // rows of A
};

GS_RASTER_HD Factors make_factors(const Camera& camera, const Geometry& row) {
  Factors f;
  const Float3 place = to_camera(camera, row.mean);
  f.z = place.z;
  f.slope_x = place.x / place.z;
  f.slope_y = place.y / place.z;
  f.unit = normalise(row.quat);
  f.Q = rotation(f.unit.q);
  f.scale = {expf(row.scale.x), expf(row.scale.y), expf(row.scale.z)};
  const float held_x = fminf(camera.most_x, fmaxf(camera.least_x, f.slope_x));
  const float held_y = fminf(camera.most_y, fmaxf(camera.least_y, f.slope_y));
  f.JW0 = (camera.right - camera.front * held_x) * (camera.fx / f.z);
  f.JW1 = (camera.below - camera.front * held_y) * (camera.fy / f.z);
  f.A0 = multiply(multiply_transposed(f.Q, f.JW0), f.scale);
  f.A1 = multiply(multiply_transposed(f.Q, f.JW1), f.scale);
  return f;
}

/// The covariance with the blur.
struct Covariance {
  float xx, xy, yy;
  float det;
  float sharp;    // the determinant without the blur
  Float3 normal;  // the cross product of A's rows
};

GS_RASTER_HD Covariance blurred_covariance(const Float3& A0, const Float3& A1, float eps2d) {
  const float xx = dot(A0, A0), yy = dot(A1, A1);
  // det(A A^T) is the squared length of the cross product of A's rows (Lagrange's identity): the
  // determinant of a needle keeps its digits.
  const Float3 normal = cross(A0, A1);
  const float sharp = dot(normal, normal);
  const float det = sharp + eps2d * (xx + yy) + eps2d * eps2d;
  return {xx + eps2d, dot(A0, A1), yy + eps2d, det, sharp, normal};
}

/// What the blur leaves of the peak, so that the splat's sum stays (Yu et al., Mip-Splatting,
/// 2024).
GS_RASTER_HD float compensation(const Covariance& covariance) {
  return sqrtf(covariance.sharp / covariance.det);
}

/// The inverse of the covariance, upper triangle.
struct Conic {
  float xx, xy, yy;
};

GS_RASTER_HD Conic invert(const Covariance& c) {
  return {c.yy / c.det, -c.xy / c.det, c.xx / c.det};
}

/// sigmoid(logit) and what is missing to 1, each with all its digits.
struct Sigmoid {
  float value, rest;
};

GS_RASTER_HD Sigmoid sigmoid(float logit) {
  const float e = expf(-logit);
  const float value = 1.0f / (1.0f + e);
  return {value, e * value};
}

/// Half extents in pixels.
struct Radii {
  std::int32_t x, y;
};

// Radii saturate here: the largest float below 2^31.
constexpr float kMaxRadius = 2147483520.0f;

/// The tiles from `centre - radius` to `centre + radius`, first | end << 16, on an axis of `side`
/// pixels.
GS_RASTER_HD std::uint32_t span_tiles(float centre, float radius, float side) {
  constexpr float kSide = static_cast<float>(kTile);
  const float n_tiles = ceilf(side / kSide);
  const float middle = centre / kSide, reach = radius / kSide;
  // Clamped before the conversion: a float out of range has no integer.
  const float first = fminf(fmaxf(floorf(middle - reach), 0.0f), n_tiles);
  const float end = fminf(fmaxf(ceilf(middle + reach), 0.0f), n_tiles);
  return static_cast<std::uint32_t>(first) | static_cast<std::uint32_t>(end) << 16;
}

/// True if the row shows; then `splat` is filled except for its colour, and `radii`. Comparisons
/// are written so that NaN fails them.
GS_RASTER_HD bool project_row(const Camera& camera, const Options& options, const Geometry& row,
                              Splat* splat, Radii* radii) {
  const Factors f = make_factors(camera, row);
  if (!(options.near_plane <= f.z && f.z <= fminf(options.far_plane, FLT_MAX))) return false;
  const Covariance covariance = blurred_covariance(f.A0, f.A1, options.eps2d);
  if (!(covariance.det > 0.0f && covariance.det <= FLT_MAX)) return false;
  float opacity = sigmoid(row.logit).value;
  if (options.antialiased) opacity *= compensation(covariance);
  if (!(opacity >= kAlphaThreshold)) return false;
  // Beyond this many sigma alpha is below the threshold (Radl et al., StopThePop, 2024, B.2).
  const float extent = fminf(kMaxExtent, sqrtf(2.0f * logf(opacity / kAlphaThreshold)));
  const float radius_x = fminf(ceilf(extent * sqrtf(covariance.xx)), kMaxRadius);
  const float radius_y = fminf(ceilf(extent * sqrtf(covariance.yy)), kMaxRadius);
  const float clip = fmaxf(options.radius_clip, 0.0f);
  if (radius_x <= clip && radius_y <= clip) return false;
  const float u = camera.fx * f.slope_x + camera.cx;
  const float v = camera.fy * f.slope_y + camera.cy;
  if (!(u + radius_x > 0.0f && u - radius_x < camera.width)) return false;
  if (!(v + radius_y > 0.0f && v - radius_y < camera.height)) return false;
  const Conic conic = invert(covariance);
  if (!is_finite(conic.xx + conic.xy + conic.yy)) return false;
  *radii = {static_cast<std::int32_t>(radius_x), static_cast<std::int32_t>(radius_y)};
  splat->x = u;
  splat->y = v;
  splat->opacity = opacity;
  splat->depth = f.z;
  splat->xx = conic.xx;
  splat->xy = conic.xy;
  splat->yy = conic.yy;
  splat->columns = span_tiles(u, radius_x, camera.width);
  splat->rows = span_tiles(v, radius_y, camera.height);
  return true;
}

}  // namespace gs::raster
