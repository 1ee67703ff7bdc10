// SPDX-License-Identifier: Apache-2.0
// Colour of a row seen from a direction: real spherical harmonics up to degree 3 (Ramamoorthi and
// Hanrahan, 2001) with signs and order of the 3DGS file format (Kerbl et al., 2023), and the
// gradient. Colour is the sum plus 0.5, clamped at 0 from below.
//
// A row's coefficients are words: of function k and channel c, word 3 k + c.
#pragma once

#include "vec3.cuh"

namespace gs::raster {

/// Functions up to a degree.
template <int kDegree>
constexpr int kFunctions = (kDegree + 1) * (kDegree + 1);

// sqrt((2l+1)/(4 pi) (l-m)!/(l+m)!), times sqrt(2) for m > 0, and the polynomials' own factors.
constexpr float kL0 = 0.28209479177387814f;
constexpr float kL1 = 0.4886025119029199f;
constexpr float kL2XY = 1.0925484305920792f;
constexpr float kL2ZZ = 0.31539156525252005f;
constexpr float kL2XXYY = 0.5462742152960396f;
constexpr float kL3X3 = 0.5900435899266435f;
constexpr float kL3XYZ = 2.890611442640554f;
constexpr float kL3XZZ = 0.4570457994644658f;
constexpr float kL3ZZZ = 0.3731763325901154f;
constexpr float kL3XXZ = 1.445305721320277f;

/// The functions of a unit vector.
template <int kDegree>
GS_RASTER_HD void fill_basis(const Float3& d, float (&basis)[kFunctions<kDegree>]) {
  const float x = d.x, y = d.y, z = d.z;
  basis[0] = kL0;
  if constexpr (kDegree >= 1) {
    basis[1] = -kL1 * y;
    basis[2] = kL1 * z;
    basis[3] = -kL1 * x;
  }
  if constexpr (kDegree >= 2) {
    basis[4] = kL2XY * x * y;
    basis[5] = -kL2XY * y * z;
    basis[6] = kL2ZZ * (3.0f * z * z - 1.0f);
    basis[7] = -kL2XY * x * z;
    basis[8] = kL2XXYY * (x * x - y * y);
  }
  if constexpr (kDegree >= 3) {
    basis[9] = -kL3X3 * y * (3.0f * x * x - y * y);
    basis[10] = kL3XYZ * x * y * z;
    basis[11] = -kL3XZZ * y * (5.0f * z * z - 1.0f);
    basis[12] = kL3ZZZ * z * (5.0f * z * z - 3.0f);
    basis[13] = -kL3XZZ * x * (5.0f * z * z - 1.0f);
    basis[14] = kL3XXZ * z * (x * x - y * y);
    basis[15] = -kL3X3 * x * (x * x - 3.0f * y * y);
  }
}

/// The gradient by x, y and z, taken as independent, of the sum of functions times weights.
template <int kDegree>
GS_RASTER_HD Float3 sum_slopes(const Float3& d, const float (&weight)[kFunctions<kDegree>]) {
  const float x = d.x, y = d.y, z = d.z;
  Float3 sum{0.0f, 0.0f, 0.0f};
  if constexpr (kDegree >= 1) {
    sum = Float3{-weight[3], -weight[1], weight[2]} * kL1;
  }
  if constexpr (kDegree >= 2) {
    sum.x += kL2XY * (weight[4] * y - weight[7] * z) + 2.0f * kL2XXYY * weight[8] * x;
    sum.y += kL2XY * (weight[4] * x - weight[5] * z) - 2.0f * kL2XXYY * weight[8] * y;
    sum.z += 6.0f * kL2ZZ * weight[6] * z - kL2XY * (weight[5] * y + weight[7] * x);
  }
  if constexpr (kDegree >= 3) {
    const float xx_yy = x * x - y * y, xy = 2.0f * x * y, zz = 5.0f * z * z - 1.0f;
    sum.x -= 3.0f * kL3X3 * (weight[9] * xy + weight[15] * xx_yy);
    sum.y -= 3.0f * kL3X3 * (weight[9] * xx_yy - weight[15] * xy);
    sum.x += kL3XYZ * weight[10] * y * z + 2.0f * kL3XXZ * weight[14] * x * z;
    sum.y += kL3XYZ * weight[10] * x * z - 2.0f * kL3XXZ * weight[14] * y * z;
    sum.z += kL3XYZ * weight[10] * x * y + kL3XXZ * weight[14] * xx_yy;
    sum.x -= kL3XZZ * weight[13] * zz;
    sum.y -= kL3XZZ * weight[11] * zz;
    sum.z +=
        3.0f * kL3ZZZ * weight[12] * zz - 10.0f * kL3XZZ * z * (weight[11] * y + weight[13] * x);
  }
  return sum;
}

/// The sum of the functions plus 0.5.
template <int kDegree>
GS_RASTER_HD Float3 unclamped_color(const float (&basis)[kFunctions<kDegree>], const float* words) {
  Float3 color{0.5f, 0.5f, 0.5f};
#pragma unroll
  for (int k = 0; k < kFunctions<kDegree>; ++k)
    color = color + Float3{words[3 * k], words[3 * k + 1], words[3 * k + 2]} * basis[k];
  return color;
}

/// The colour of a row that lies `away` from the camera, in red, green and blue of `splat`; false
/// if it is not finite.
template <int kDegree>
GS_RASTER_HD bool color_row(const Float3& away, const float* words, Splat* splat) {
  float basis[kFunctions<kDegree>];
  fill_basis<kDegree>(away * (1.0f / sqrtf(dot(away, away))), basis);
  const Float3 color = unclamped_color<kDegree>(basis, words);
  splat->red = fmaxf(color.x, 0.0f);
  splat->green = fmaxf(color.y, 0.0f);
  splat->blue = fmaxf(color.z, 0.0f);
  return is_finite(color.x + color.y + color.z);
}

/// Replaces a row's words by the gradients by them; returns the gradient by `away`.
template <int kDegree>
GS_RASTER_HD Float3 backward_color(const Float3& away, const SplatGradient& g, float* words) {
  const float inverse = 1.0f / sqrtf(dot(away, away));
  const Float3 direction = away * inverse;
  float basis[kFunctions<kDegree>], weight[kFunctions<kDegree>];
  fill_basis<kDegree>(direction, basis);
  const Float3 color = unclamped_color<kDegree>(basis, words);
  const Float3 by_color{color.x < 0.0f ? 0.0f : g.red, color.y < 0.0f ? 0.0f : g.green,
                        color.z < 0.0f ? 0.0f : g.blue};
#pragma unroll
  for (int k = 0; k < kFunctions<kDegree>; ++k) {
    weight[k] = dot(by_color, Float3{words[3 * k], words[3 * k + 1], words[3 * k + 2]});
    words[3 * k] = by_color.x * basis[k];
    words[3 * k + 1] = by_color.y * basis[k];
    words[3 * k + 2] = by_color.z * basis[k];
  }
  // Only the part across the viewing direction: its length is fixed.
  const Float3 slope = sum_slopes<kDegree>(direction, weight);
  return (slope - direction * dot(slope, direction)) * inverse;
}

}  // namespace gs::raster
