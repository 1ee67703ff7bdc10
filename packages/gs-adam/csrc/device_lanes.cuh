// SPDX-License-Identifier: Apache-2.0
// Neighbouring values of a row in one thread, and the tensors that they are of.
#pragma once

#include <cstdint>

#include "kernel.hpp"

namespace gs::adam {
namespace {

/// Neighbouring values of a row, one access of memory.
template <int kLanes>
struct alignas(sizeof(float) * kLanes) Values {
  float of[kLanes];
};

template <int kLanes>
__device__ Values<kLanes>& values_at(float* start, std::int64_t at) {
  return *reinterpret_cast<Values<kLanes>*>(start + at);
}

template <int kLanes>
__device__ const Values<kLanes>& values_at(const float* start, std::int64_t at) {
  return *reinterpret_cast<const Values<kLanes>*>(start + at);
}

__device__ __forceinline__ std::int64_t id_at(const Ids& ids, std::int64_t i) {
  return ids.narrow != nullptr ? ids.narrow[i] : ids.wide[i];
}

/// Calls use(tensor, lane, is_first) for every lane of a row's values from `column` on; is_first
/// where the lane before is another tensor's.
template <int kLanes, class Job, class Use>
__device__ __forceinline__ void for_lanes(const Job& job, int column, const Use& use) {
  int k = 0;
  while (column >= job.tensors[k].end) ++k;
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) {
    const bool ends = lane > 0 && column + lane == job.tensors[k].end;
    if (ends) ++k;
    use(job.tensors[k], lane, lane == 0 || ends);
  }
}

}  // namespace
}  // namespace gs::adam
