// SPDX-License-Identifier: Apache-2.0
// Where the kernels of sorting find their job.
#pragma once

#include "sort_job.hpp"

namespace gs::raster {

/// Among the arguments of the launch.
struct GivenJob {
  SortJob given;
  __device__ __forceinline__ const SortJob& job() const { return given; }
};

/// In device memory: the same launch serves one job after the other.
struct PutJob {
  const SortJob* put;
  __device__ __forceinline__ const SortJob& job() const { return *put; }
};

}  // namespace gs::raster
