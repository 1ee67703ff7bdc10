// SPDX-License-Identifier: Apache-2.0
// The dense step on the GPU: all rows in one kernel, gradients compact.
#pragma once

#include <cstdint>

#include "kernel.hpp"

namespace gs::adam {

/// Tensors of one launch at most; more are given to further launches.
constexpr int kMostDeviceTensors = 8;

/// A loss on every value of a tensor, beside the gradients: `weight` times its activation.
enum class Penalty : std::int32_t { kNone, kExp, kSigmoid };

/// [n_rows, width] float32 each, contiguous.
struct DeviceTensor {
  float* param;
  float* exp_avg;
  float* exp_avg_sq;
  const float* grad;  // null: zero
  std::int64_t grad_stride;
  std::int32_t width;
  bool is_aligned;  // all three to 16 bytes
  Penalty penalty;
  float penalty_weight;
  Step step;
};

struct DeviceJob {
  DeviceTensor tensors[kMostDeviceTensors];
  std::int32_t n_tensors;
  std::int64_t n_rows;
  Ids ids;      // sorted and unique, trusted; their gradients lie in the same order
  bool by_row;  // gradients are [n_rows, width] and there are no ids
};

/// One kernel on `stream` of `device`; rows without a gradient get the step of a zero one. Reads
/// and writes 24 bytes a value, and 4 for each value that has a gradient. Returns before it is
/// done, never synchronises. Throws gs::CudaError when the launch fails. Variants differ in speed
/// alone: bench_device.py times them.
constexpr int kDeviceVariants = 8;
void launch_device_step(const DeviceJob& job, int device, std::uintptr_t stream, int variant);

}  // namespace gs::adam
