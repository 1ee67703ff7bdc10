// SPDX-License-Identifier: Apache-2.0
// One row's geometry from the tables, and the words of its gradients.
#pragma once

#include <cstdint>

#include "projection.cuh"
#include "rows.hpp"
#include "warp_rows.cuh"

namespace gs::raster {
namespace {

/// indices[i], and i itself where there are no indices.
__device__ __forceinline__ std::int32_t index_of(const std::int32_t* indices, std::int64_t i) {
  return indices != nullptr ? __ldg(indices + i) : static_cast<std::int32_t>(i);
}

__device__ __forceinline__ Float3 load3(const Column<const float>& column, std::int32_t slot) {
  const float* const from = at(column, slot);
  return {__ldg(from), __ldg(from + 1), __ldg(from + 2)};
}

__device__ __forceinline__ Quaternion load_quaternion(const Column<const float>& column,
                                                      std::int32_t slot) {
  const float* const from = at(column, slot);
  const bool is_aligned =
      reinterpret_cast<std::uintptr_t>(column.data) % sizeof(float4) == 0 && column.pitch % 4 == 0;
  if (is_aligned) {
    const float4 q = __ldg(reinterpret_cast<const float4*>(from));
    return {q.x, {q.y, q.z, q.w}};
  }
  return {__ldg(from), {__ldg(from + 1), __ldg(from + 2), __ldg(from + 3)}};
}

__device__ __forceinline__ Geometry load_geometry(const Rows& rows, std::int32_t slot) {
  return {load3(rows.means, slot), load3(rows.scales, slot), load_quaternion(rows.quats, slot),
          __ldg(at(rows.opacities, slot))};
}

constexpr int kGeometryWords = 11;

/// The gradients of a row's geometry: means, scales, quats, opacities.
__device__ __forceinline__ LaneWords<float> geometry_words(const RowGradients& out, int lane) {
  const Column<float> low = lane < 3    ? word(out.means, lane)
                            : lane < 6  ? word(out.scales, lane - 3)
                            : lane < 10 ? word(out.quats, lane - 6)
                                        : out.opacities;
  return {low, low};
}

__device__ __forceinline__ void put_geometry(const Geometry& row, float* words) {
  words[0] = row.mean.x;
  words[1] = row.mean.y;
  words[2] = row.mean.z;
  words[3] = row.scale.x;
  words[4] = row.scale.y;
  words[5] = row.scale.z;
  words[6] = row.quat.w;
  words[7] = row.quat.v.x;
  words[8] = row.quat.v.y;
  words[9] = row.quat.v.z;
  words[10] = row.logit;
}

}  // namespace
}  // namespace gs::raster
