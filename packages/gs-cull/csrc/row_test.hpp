// SPDX-License-Identifier: Apache-2.0
// Does one Gaussian show in one view? The definition that every path of this package ends in.
//
// gsplat 1.5.3 draws a Gaussian when its projection kernel gives it radii > 0. The kernel computes
// in float32, so near a threshold the answer depends on how an expression is compiled. The test
// here follows the same formulas with intervals that contain every value such a computation may
// give, and answers yes when any of them would show. With Options::moves() the intervals also
// contain every position, scale, rotation and opacity within reach.
#pragma once

#include "camera.hpp"

namespace gs::cull {

/// Rows of Gaussians. Pointers to host or device memory; opacities may be null.
struct Geometry {
  const float* means;      // (N, 3)
  const float* scales;     // (N, 3)
  const float* quats;      // (N, 4)
  const float* opacities;  // (N,)
};

/// What of a row does not depend on the view.
struct Row {
  float mean[3];
  float norm1;     // |x| + |y| + |z|
  float scale[3];  // largest within reach
  float s_max;     // largest of the three
  float cov[6];    // world covariance of the largest scales within reach: xx xy xz yy yz zz
  float spin;      // bound of |R' - R| over rotations within reach
  float opacity;   // largest within reach, if has_opacity
  bool has_opacity;
};

namespace detail {

GS_CULL_HD bool is_finite(float x) { return fabsf(x) <= 3.4028235e38f; }
GS_CULL_HD float larger(float a, float b) { return a > b ? a : b; }
GS_CULL_HD float smaller(float a, float b) { return a < b ? a : b; }

struct Interval {
  float low, high;
};

/// All products of a number in `x` and a number in [r.low, r.high], r.low > 0.
GS_CULL_HD Interval times_positive(Interval x, Interval r) {
  return {x.low * (x.low > 0 ? r.low : r.high), x.high * (x.high > 0 ? r.high : r.low)};
}

/// f * a + c, for f of any sign, and the rounding of it.
GS_CULL_HD Interval pixels(Interval a, float f, float c) {
  const float p = f * a.low + c, q = f * a.high + c;
  const float slack = kRelative * (fabsf(f) * larger(fabsf(a.low), fabsf(a.high)) + fabsf(c));
  return {smaller(p, q) - slack, larger(p, q) + slack};
}

/// A row of the projection's Jacobian: its value at the centre, and how far it may be from there.
struct JacobianRow {
  float j[3];
  float norm, error;
};

/// Where the mean may be on screen, and the Jacobian there.
struct Projection {
  Interval u, v;
  JacobianRow ju, jv;
  bool anywhere;  // the position does not bound the projection
};

GS_CULL_HD JacobianRow pinhole_row(int axis, float f, float lim_neg, float lim_pos, float tangent,
                                   Interval tangents, float inverse_z, Interval inverses) {
  const float clamped = smaller(lim_pos, larger(-lim_neg, tangent));
  const float left = smaller(lim_pos, larger(-lim_neg, tangents.low));
  const float right = smaller(lim_pos, larger(-lim_neg, tangents.high));
  const float slope = sqrtf(1 + clamped * clamped), size = fabsf(f);
  JacobianRow row = {{0, 0, -f * inverse_z * clamped}, size * inverse_z * slope, 0};
  row.j[axis] = f * inverse_z;
  row.error = size * ((inverses.high - inverses.low) * slope + inverses.high * (right - left));
  return row;
}

GS_CULL_HD Projection project_pinhole(const Camera& camera, const float p[3], const float e[3],
                                      Interval z) {
  const float centre = smaller(larger(p[2], z.low), z.high);
  const float inverse_z = 1 / centre;
  const Interval inverses = {(1 / z.high) * (1 - kRelative), (1 / z.low) * (1 + kRelative)};
  const Interval x = times_positive({p[0] - e[0], p[0] + e[0]}, inverses);
  const Interval y = times_positive({p[1] - e[1], p[1] + e[1]}, inverses);
  Projection out;
  out.anywhere = false;
  out.u = pixels(x, camera.fx, camera.cx);
  out.v = pixels(y, camera.fy, camera.cy);
  out.ju = pinhole_row(0, camera.fx, camera.lim_x_neg, camera.lim_x_pos, p[0] * inverse_z, x,
                       inverse_z, inverses);
  out.jv = pinhole_row(1, camera.fy, camera.lim_y_neg, camera.lim_y_pos, p[1] * inverse_z, y,
                       inverse_z, inverses);
  return out;
}

GS_CULL_HD Projection project_ortho(const Camera& camera, const float p[3], const float e[3]) {
  Projection out;
  out.anywhere = false;
  out.u = pixels({p[0] - e[0], p[0] + e[0]}, camera.fx, camera.cx);
  out.v = pixels({p[1] - e[1], p[1] + e[1]}, camera.fy, camera.cy);
  out.ju = {{camera.fx, 0, 0}, fabsf(camera.fx), 0};
  out.jv = {{0, camera.fy, 0}, fabsf(camera.fy), 0};
  return out;
}

/// gsplat's equidistant model, its small constants included.
GS_CULL_HD Projection project_fisheye(const Camera& camera, const float p[3], const float e[3]) {
  const float kTiny = 1e-7f;
  const float x = p[0], y = p[1], z = p[2];
  const float flat = sqrtf(x * x + y * y), length = flat + kTiny;
  const float away = sqrtf(flat * flat + z * z);
  const float error = sqrtf(e[0] * e[0] + e[1] * e[1] + e[2] * e[2]);
  // The projection is homogeneous of degree 0 with first derivatives of at most 2.03 / |p| in
  // front of the camera; behind it, pi / distance from the axis takes over.
  const float reach = z - error > 0 ? away - error : smaller(away, flat) - error;
  Projection out;
  out.anywhere = !(reach > 0);
  const float steep = (z - error > 0 ? 2.1f : 3.9f) / reach, bend = 16 / (reach * reach);
  const float theta = atan2f(length, z + kTiny) / length;
  const float shift = steep * error;
  out.u = pixels({x * theta - shift, x * theta + shift}, camera.fx, camera.cx);
  out.v = pixels({y * theta - shift, y * theta + shift}, camera.fy, camera.cy);
  const float x2 = x * x + kTiny, y2 = y * y, xy = x * y, flat2 = x2 + y2;
  const float inverse = 1 / (flat2 + z * z);
  const float b = atan2f(length, z) / length / flat2, a = z * inverse / flat2;
  const float fx = camera.fx, fy = camera.fy;
  out.ju = {{fx * (x2 * a + y2 * b), fx * xy * (a - b), -fx * x * inverse}, 0, 0};
  out.jv = {{fy * xy * (a - b), fy * (y2 * a + x2 * b), -fy * y * inverse}, 0, 0};
  out.ju.norm = fabsf(fx) * steep;
  out.jv.norm = fabsf(fy) * steep;
  out.ju.error = fabsf(fx) * bend * error;
  out.jv.error = fabsf(fy) * bend * error;
  return out;
}

/// R^T j: the direction in the world that a Jacobian row measures.
GS_CULL_HD void to_world(const Camera& camera, const float j[3], float w[3]) {
  for (int c = 0; c < 3; ++c)
    w[c] = camera.R[c] * j[0] + camera.R[3 + c] * j[1] + camera.R[6 + c] * j[2];
}

/// a^T cov b.
GS_CULL_HD float quadratic(const float cov[6], const float a[3], const float b[3]) {
  return a[0] * (cov[0] * b[0] + cov[1] * b[1] + cov[2] * b[2]) +
         a[1] * (cov[1] * b[0] + cov[3] * b[1] + cov[4] * b[2]) +
         a[2] * (cov[2] * b[0] + cov[4] * b[1] + cov[5] * b[2]);
}

/// The largest det / det' that a float computation may give, where det = a c - b^2 and det' is the
/// same after eps is added to a and c. Infinite where rounding may swallow what eps adds.
GS_CULL_HD float largest_compensation2(Interval a, Interval c, Interval b, float eps) {
  const float rounding = 4e-7f * (a.high + eps) * (c.high + eps);  // 7 u, one computation
  const float added = eps * (a.low + c.low + eps) * (1 - kRelative) - rounding;
  const float det_low = larger(a.low * c.low - b.high * b.high, 0);
  const float det_high = larger(a.high * c.high - b.low * b.low, 0);
  // (det + rounding) / (det + added) is monotone in det, up or down.
  if (!(det_low + added > 0)) return INFINITY;
  return larger((det_low + rounding) / (det_low + added),
                (det_high + rounding) / (det_high + added));
}

/// The same for every shape whose a and c lie in these intervals, whatever its b: det may be
/// anything from 0 on, where the quotient lies between its value at 0 and 1.
GS_CULL_HD float largest_compensation2_of_any(Interval a, Interval c, float eps) {
  const float rounding = 4e-7f * (a.high + eps) * (c.high + eps);
  const float added = eps * (a.low + c.low + eps) * (1 - kRelative) - rounding;
  return added > 0 ? larger(1, rounding / added) : INFINITY;
}

/// How small a squared scale within reach may be, of the largest within reach.
GS_CULL_HD float least_shrink2(const Row& row, const Options& options) {
  if (!(options.move_scales > 0)) return 1;
  if (!options.activated) return expf(-4 * options.move_scales) * (1 - kRelative);
  float least = 1;
  for (int c = 0; c < 3; ++c)
    least = smaller(least, larger(0, 1 - 2 * options.move_scales / row.scale[c]));
  return least * least * (1 - kRelative);
}

/// sqrt(2 ln(255 opacity)), at most kExtent, as gsplat's box is sized. Where its fast logarithm may
/// come out negative the root is NaN, and its minimum with 3.33 is 3.33.
GS_CULL_HD float extent_of(float opacity) {
  const float log_ratio = logf(opacity * 255.0f) + 2e-6f;
  if (!(log_ratio > 5e-6f)) return kExtent;
  const float extent = sqrtf(2 * log_ratio);
  return extent < kExtent ? extent : kExtent;
}

}  // namespace detail

/// The mean and what the planes need. Returns whether mean and scales are finite; rows that are
/// not never show. Cheap next to load_shape().
GS_CULL_HD bool load_place(const Geometry& rows, std::int64_t i, const Options& options, Row* row) {
  float s_max = 0;
  bool finite = true;
  for (int c = 0; c < 3; ++c) {
    row->mean[c] = rows.means[3 * i + c];
    float s = rows.scales[3 * i + c];
    s = options.activated ? fabsf(s) + options.move_scales : expf(s + options.move_scales);
    finite = finite && detail::is_finite(row->mean[c]) && detail::is_finite(s);
    row->scale[c] = s;
    s_max = detail::larger(s_max, s);
  }
  row->norm1 = fabsf(row->mean[0]) + fabsf(row->mean[1]) + fabsf(row->mean[2]);
  row->s_max = s_max * (1 + kRelative);
  return finite;
}

/// The rest of the row, after load_place(). False when its rotation is undefined (zero or not
/// finite), which gsplat gives no radius.
GS_CULL_HD bool load_shape(const Geometry& rows, std::int64_t i, const Options& options, Row* row) {
  const float* const s = row->scale;
  float q[4], norm2 = 0;
  for (int c = 0; c < 4; ++c) q[c] = rows.quats[4 * i + c];
  row->has_opacity = rows.opacities != nullptr;
  if (row->has_opacity) {
    const float raw = rows.opacities[i] + options.move_opacities;
    row->opacity = (options.activated ? raw : 1 / (1 + expf(-raw))) * (1 + kRelative);
  }
  for (int c = 0; c < 4; ++c) norm2 += q[c] * q[c];
  float scale = 1;
  if (norm2 < 1e-30f) {  // its square loses digits or vanishes
    scale = 1.8446744e19f;
    norm2 = 0;
    for (int c = 0; c < 4; ++c) {
      q[c] *= scale;
      norm2 += q[c] * q[c];
    }
  }
  if (!(norm2 > 0) || norm2 != norm2) {
    // With rotations within reach of a zero quaternion anything is possible: a ball.
    if (!(options.move_quats > 0)) return false;
    const float s2 = row->s_max * row->s_max;
    const float ball[6] = {s2, 0, 0, s2, 0, s2};
    for (int c = 0; c < 6; ++c) row->cov[c] = ball[c];
    row->spin = 0;
    return norm2 == norm2;
  }
  const float inverse = 1 / sqrtf(norm2);
  // A change of q by d turns it by at most asin(|d| / |q|), the rotation by twice that.
  row->spin = detail::smaller(2.0f, 4 * options.move_quats * scale * inverse * (1 + kRelative));
  const float w = q[0] * inverse, x = q[1] * inverse, y = q[2] * inverse, z = q[3] * inverse;
  const float m[3][3] = {
      {(1 - 2 * (y * y + z * z)) * s[0], 2 * (x * y - w * z) * s[1], 2 * (x * z + w * y) * s[2]},
      {2 * (x * y + w * z) * s[0], (1 - 2 * (x * x + z * z)) * s[1], 2 * (y * z - w * x) * s[2]},
      {2 * (x * z - w * y) * s[0], 2 * (y * z + w * x) * s[1], (1 - 2 * (x * x + y * y)) * s[2]}};
  int k = 0;
  for (int a = 0; a < 3; ++a)
    for (int b = a; b < 3; ++b)
      row->cov[k++] = m[a][0] * m[b][0] + m[a][1] * m[b][1] + m[a][2] * m[b][2];
  return true;
}

/// The whole row. False for a row that no view sees: not finite, or without a rotation.
GS_CULL_HD bool load_row(const Geometry& rows, std::int64_t i, const Options& options, Row* row) {
  return load_place(rows, i, options, row) && load_shape(rows, i, options, row);
}

/// False when a plane of the view rules the row out. Needs load_place() only.
GS_CULL_HD bool passes_planes(const Camera& camera, const Row& row) {
  for (int i = 0; i < camera.n_planes; ++i) {
    const Plane& plane = camera.planes[i];
    const float distance = plane.n[0] * row.mean[0] + plane.n[1] * row.mean[1] +
                           plane.n[2] * row.mean[2] + plane.d + plane.k * row.s_max;
    if (distance + kPlaneMargin * (plane.n_abs * row.norm1 + plane.d_abs) < 0) return false;
  }
  return true;
}

/// Where a row's box may reach on screen, in pixels: it lies within [x0, x1] x [y0, y1].
struct Box {
  float x0, y0, x1, y1;
};

/// False when the row has no box in the view whatever the rounding: outside near and far, too
/// transparent, or not larger than radius_clip. Needs load_place() and load_shape().
GS_CULL_HD bool box_of(const Camera& camera, const Row& row, const Options& options, Box* box) {
  using namespace detail;
  float p[3], e[3];
  for (int r = 0; r < 3; ++r) {
    const float* R = camera.R + 3 * r;
    p[r] = R[0] * row.mean[0] + R[1] * row.mean[1] + R[2] * row.mean[2] + camera.t[r];
    e[r] = kPosition * (fabsf(R[0] * row.mean[0]) + fabsf(R[1] * row.mean[1]) +
                        fabsf(R[2] * row.mean[2]) + fabsf(camera.t[r])) +
           options.move_means * (fabsf(R[0]) + fabsf(R[1]) + fabsf(R[2])) * (1 + kRelative);
  }
  Interval z = {p[2] - e[2], p[2] + e[2]};
  if (z.high < options.near_plane || z.low > options.far_plane) return false;
  z.low = larger(z.low, options.near_plane);
  z.high = smaller(z.high, options.far_plane);

  const Projection at = options.model == CameraModel::kPinhole ? project_pinhole(camera, p, e, z)
                        : options.model == CameraModel::kOrtho ? project_ortho(camera, p, e)
                                                               : project_fisheye(camera, p, e);
  if (at.anywhere) {
    *box = {-INFINITY, -INFINITY, INFINITY, INFINITY};
    return true;
  }

  float wu[3], wv[3];
  to_world(camera, at.ju.j, wu);
  to_world(camera, at.jv.j, wv);
  const float s2 = row.s_max * row.s_max;
  const float nu = camera.stretch * at.ju.norm, nv = camera.stretch * at.jv.norm;
  const float a = larger(quadratic(row.cov, wu, wu), 0);
  const float c = larger(quadratic(row.cov, wv, wv), 0);
  // Elements of R are good to about 10 u after fast rsqrt, of M M^T to 30 u s_max^2; summed over a
  // quadratic form and over two computations that is 180 u |j|^2 s_max^2.
  const float noise_u = kCovariance * nu * nu * s2, noise_v = kCovariance * nv * nv * s2;
  // |S R'^T j'| <= |S R^T j| + s_max (|R' - R| |j'| + |j' - j|)
  const float drift_u =
      camera.stretch * row.s_max * (row.spin * (at.ju.norm + at.ju.error) + at.ju.error);
  const float drift_v =
      camera.stretch * row.s_max * (row.spin * (at.jv.norm + at.jv.error) + at.jv.error);
  const float sigma_u = sqrtf(a + noise_u) + drift_u, sigma_v = sqrtf(c + noise_v) + drift_v;
  const float a_high = sigma_u * sigma_u, c_high = sigma_v * sigma_v;

  float extent = kExtent;
  if (row.has_opacity) {
    float opacity = row.opacity;
    if (options.antialiased && options.moves()) {
      // a_high - a is the most that rounding and rotations change a by, up or down.
      const float shrink = least_shrink2(row, options);
      opacity *= sqrtf(largest_compensation2_of_any({larger(shrink * a - (a_high - a), 0), a_high},
                                                    {larger(shrink * c - (c_high - c), 0), c_high},
                                                    options.eps2d));
    } else if (options.antialiased) {
      const float b = quadratic(row.cov, wu, wv);
      const float b_error =
          kCovariance * nu * nv * s2 + sqrtf(a) * drift_v + sqrtf(c) * drift_u + drift_u * drift_v;
      opacity *= sqrtf(largest_compensation2(
          {larger(2 * a - a_high, 0), a_high}, {larger(2 * c - c_high, 0), c_high},
          {larger(fabsf(b) - b_error, 0), fabsf(b) + b_error}, options.eps2d));
    }
    if (opacity < 1 / 255.0f * (1 - 2 * kRelative)) return false;
    extent = extent_of(opacity);
  }
  const float rx = ceilf(extent * sqrtf(a_high + options.eps2d) * (1 + 2 * kRelative));
  const float ry = ceilf(extent * sqrtf(c_high + options.eps2d) * (1 + 2 * kRelative));
  if (rx <= options.radius_clip && ry <= options.radius_clip) return false;
  // Without blur gsplat drops a splat of no area.
  if (!(options.eps2d > 0) && a_high * c_high <= 0) return false;
  // NaN, from overflow, reaches everywhere.
  const float x0 = at.u.low - rx * (1 + kRelative), x1 = at.u.high + rx * (1 + kRelative);
  const float y0 = at.v.low - ry * (1 + kRelative), y1 = at.v.high + ry * (1 + kRelative);
  box->x0 = x0 == x0 ? x0 : -INFINITY;
  box->x1 = x1 == x1 ? x1 : INFINITY;
  box->y0 = y0 == y0 ? y0 : -INFINITY;
  box->y1 = y1 == y1 ? y1 : INFINITY;
  return true;
}

/// Whether a box meets the view's rectangle.
GS_CULL_HD bool meets(const Camera& camera, const Box& box) {
  return box.x1 > camera.x0 && box.x0 < camera.x1 && box.y1 > camera.y0 && box.y0 < camera.y1;
}

/// The part of the decision that passes_planes() leaves open. Needs load_row().
GS_CULL_HD bool box_shows(const Camera& camera, const Row& row, const Options& options) {
  Box box;
  return box_of(camera, row, options, &box) && meets(camera, box);
}

/// The decision: whether the view sees the row. Needs load_row().
GS_CULL_HD bool shows(const Camera& camera, const Row& row, const Options& options) {
  return passes_planes(camera, row) && box_shows(camera, row, options);
}

}  // namespace gs::cull
