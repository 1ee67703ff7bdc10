// SPDX-License-Identifier: Apache-2.0
// The gradient of projection.cuh for one row that shows.
//
// The covariance's gradient G' goes back through A as 2 G' A. Of a needle, the entries of A along
// its axis are large and those of 2 G' A are small, so that a product of these two matrices would
// keep no digit. With C the conic and P = adj(A A^T) A, whose rows are cross products, C A is
// (P + eps2d A) / det without a cancellation, and both parts of 2 G' A have the form 2 C M:
//   of a gradient G by the conic      G' = -C G C                          M = -G C A
//   of the squared compensation       G' = eps2d / det C adj(A A^T)        M = eps2d / det P
#pragma once

#include "projection.cuh"

namespace gs::raster {

/// False if every gradient that backward_row() and the harmonics read is 0.
GS_RASTER_HD bool has_gradient(const SplatGradient& g) {
  return g.x != 0.0f || g.y != 0.0f || g.xx != 0.0f || g.xy != 0.0f || g.yy != 0.0f ||
         g.opacity != 0.0f || g.red != 0.0f || g.green != 0.0f || g.blue != 0.0f || g.depth != 0.0f;
}

/// The gradient by the covariance, gone back through A.
struct FactorGradients {
  Float3 log_scale;
  Float3 JW0, JW1;  // by the rows of J W
};

/// by_compensation: d loss / d (compensation squared).
GS_RASTER_HD FactorGradients backward_covariance(const Factors& f, const Covariance& c, float eps2d,
                                                 const SplatGradient& g, float by_compensation) {
  const Conic conic = invert(c);
  const float inverse_det = 1.0f / c.det;
  const Float3 P0 = cross(f.A1, c.normal), P1 = cross(c.normal, f.A0);
  const Float3 CA0 = (P0 + f.A0 * eps2d) * inverse_det, CA1 = (P1 + f.A1 * eps2d) * inverse_det;
  // The conic's xy stands for both corners of the matrix: half of its gradient in each.
  const float g_xy = 0.5f * g.xy, by_P = by_compensation * eps2d * inverse_det;
  const Float3 M0 = P0 * by_P - (CA0 * g.xx + CA1 * g_xy);
  const Float3 M1 = P1 * by_P - (CA0 * g_xy + CA1 * g.yy);
  const Float3 by_A0 = (M0 * conic.xx + M1 * conic.xy) * 2.0f;
  const Float3 by_A1 = (M0 * conic.xy + M1 * conic.yy) * 2.0f;
  FactorGradients out;
  // A log scale multiplies a column of A: the gradient is that column's A . 2 C M = 2 (C A) . M.
  out.log_scale = (multiply(CA0, M0) + multiply(CA1, M1)) * 2.0f;
  out.JW0 = multiply(f.Q, multiply(f.scale, by_A0));
  out.JW1 = multiply(f.Q, multiply(f.scale, by_A1));
  return out;
}

/// The gradient by the quaternion before it was normalised. A small turn w of the row turns J W Q's
/// axes, and moves the unit quaternion q by (0, w) q / 2 (Solà, Quaternion kinematics for the
/// error-state Kalman filter, 2017): the gradient is 2 (0, torque) q, which has no part along q.
GS_RASTER_HD Quaternion backward_quaternion(const Factors& f, const FactorGradients& by) {
  const Float3 torque = cross(by.JW0, f.JW0) + cross(by.JW1, f.JW1);
  const Quaternion& q = f.unit.q;
  const float factor = 2.0f * f.unit.inverse_norm;
  return {-dot(torque, q.v) * factor, (torque * q.w + cross(torque, q.v)) * factor};
}

/// The gradient by the centre: its projection, and J's dependence on it.
GS_RASTER_HD Float3 backward_mean(const Camera& camera, const Factors& f, const SplatGradient& g,
                                  const FactorGradients& by) {
  const float per_x = camera.fx / f.z, per_y = camera.fy / f.z;
  float g_x = per_x * g.x, g_y = per_y * g.y;
  float g_z = g.depth - (g_x * f.slope_x + g_y * f.slope_y);
  // At fixed slopes A is proportional to 1 / z: z acts as all three log scales, with a minus.
  g_z -= (by.log_scale.x + by.log_scale.y + by.log_scale.z) / f.z;
  if (camera.least_x <= f.slope_x && f.slope_x <= camera.most_x) {
    const float by_slope = dot(by.JW0, camera.front) * per_x / f.z;
    g_x -= by_slope;
    g_z += by_slope * f.slope_x;
  }
  if (camera.least_y <= f.slope_y && f.slope_y <= camera.most_y) {
    const float by_slope = dot(by.JW1, camera.front) * per_y / f.z;
    g_y -= by_slope;
    g_z += by_slope * f.slope_y;
  }
  return camera.right * g_x + camera.below * g_y + camera.front * g_z;
}

GS_RASTER_HD Geometry backward_row(const Camera& camera, const Options& options,
                                   const Geometry& row, const SplatGradient& g) {
  const Factors f = make_factors(camera, row);
  const Covariance covariance = blurred_covariance(f.A0, f.A1, options.eps2d);
  const Sigmoid opacity = sigmoid(row.logit);
  float by_opacity = g.opacity, by_compensation = 0.0f;
  if (options.antialiased) {
    const float peak = compensation(covariance);
    // The 1e-6 is gsplat's guard against a vanishing compensation.
    by_compensation = 0.5f * g.opacity * opacity.value / (peak + 1e-6f);
    by_opacity *= peak;
  }
  const FactorGradients by = backward_covariance(f, covariance, options.eps2d, g, by_compensation);
  return {backward_mean(camera, f, g, by), by.log_scale, backward_quaternion(f, by),
          by_opacity * opacity.value * opacity.rest};
}

}  // namespace gs::raster
