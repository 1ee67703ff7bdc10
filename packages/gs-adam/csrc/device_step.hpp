// SPDX-License-Identifier: Apache-2.0
// The dense step on the GPU: all rows in one kernel, gradients compact.
#pragma once

#include <cstdint>

#include "gs/cuda/stream_view.hpp"
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
  bool has_flat_grad;  // without gaps, aligned to 16 bytes
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
  void* words;  // device_words(n_rows) * 8 bytes to work in, where there are ids
  std::uint32_t first_block[kMostDeviceTensors];
};

/// Words of 8 bytes that a launch with ids needs.
constexpr std::int64_t device_words(std::int64_t n_rows) { return (n_rows + 31) / 32; }

/// Two kernels on `stream` of `device`, the first over ids alone; rows without a gradient get the
/// step of a zero one. Reads and writes 24 bytes a value, and 4 for each value that has a gradient.
/// Returns before it is done, never synchronises. Throws gs::CudaError when a launch fails.
void launch_device_step(const DeviceJob& job, int device, cuda::StreamView stream);

}  // namespace gs::adam
