// SPDX-License-Identifier: Apache-2.0
// Vectors of three values, and matrices of three vectors.
#pragma once

#include <cfloat>
#include <cmath>

#include "splat.hpp"

namespace gs::raster {

template <class T>
struct Vec3 {
  T x, y, z;
};

template <class T>
GS_RASTER_HD Vec3<T> operator+(const Vec3<T>& a, const Vec3<T>& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z};
}
template <class T>
GS_RASTER_HD Vec3<T> operator-(const Vec3<T>& a, const Vec3<T>& b) {
  return {a.x - b.x, a.y - b.y, a.z - b.z};
}
template <class T>
GS_RASTER_HD Vec3<T> operator*(const Vec3<T>& a, T factor) {
  return {a.x * factor, a.y * factor, a.z * factor};
}
/// The product component by component.
template <class T>
GS_RASTER_HD Vec3<T> multiply(const Vec3<T>& a, const Vec3<T>& b) {
  return {a.x * b.x, a.y * b.y, a.z * b.z};
}
template <class T>
GS_RASTER_HD T dot(const Vec3<T>& a, const Vec3<T>& b) {
  return a.x * b.x + a.y * b.y + a.z * b.z;
}
template <class T>
GS_RASTER_HD Vec3<T> cross(const Vec3<T>& a, const Vec3<T>& b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

using Float3 = Vec3<float>;
using Double3 = Vec3<double>;

/// Three vectors a, b, c: the columns of a matrix M.
struct Columns3 {
  Float3 a, b, c;
};

GS_RASTER_HD Float3 multiply(const Columns3& m, const Float3& v) {
  return m.a * v.x + m.b * v.y + m.c * v.z;
}
GS_RASTER_HD Float3 multiply_transposed(const Columns3& m, const Float3& v) {
  return {dot(m.a, v), dot(m.b, v), dot(m.c, v)};
}

GS_RASTER_HD Float3 to_float(const Double3& v) {
  return {static_cast<float>(v.x), static_cast<float>(v.y), static_cast<float>(v.z)};
}

/// False for NaN.
GS_RASTER_HD bool is_finite(float x) { return fabsf(x) <= FLT_MAX; }
GS_RASTER_HD bool is_finite(double x) { return fabs(x) <= DBL_MAX; }

}  // namespace gs::raster
