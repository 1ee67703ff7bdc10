// SPDX-License-Identifier: Apache-2.0
// Rows in slots of device memory, caught up and stepped in one kernel.
#pragma once

#include <cstdint>

#include "gs/cuda/stream_view.hpp"
#include "kernel.hpp"
#include "series.hpp"

namespace gs::adam {

/// One group's sleeps that end at the step before, all of it on the device.
struct DeviceSleep {
  const CatchUp* recent;  // [window + 1], aligned to 16 bytes
  const Past* past;       // of step s at past[s * n_groups], up to the step before
  std::int32_t n_groups;
  std::int32_t window;
  std::int32_t replay_terms;
  double beta1;
  double root_beta2;
};

/// Columns of the rows that are one tensor's, from the end of the tensor before on.
struct DeviceColumns {
  std::int32_t end;
  Step step;
  DeviceSleep sleep;
};

struct DeviceSlots {
  float* param;  // [slots, width] each, contiguous
  float* exp_avg;
  float* exp_avg_sq;
  const float* grads;  // [n_rows, width]
  std::int64_t grad_stride;
  Ids slots;                  // [n_rows] rows of the tables, distinct
  Ids ids;                    // [n_rows] rows of last_step, distinct
  std::int32_t* last_step;    // null: rows do not sleep
  const std::uint8_t* marks;  // [n_rows], 0: the row is left alone; null: none is
  std::int64_t* counts;       // [2] marked rows, and those of them that slept, are added; or null
  std::int32_t step;
  std::int32_t width;
  bool steps;      // else rows are brought to the step before, no more
  bool has_quads;  // everything aligned to 16 bytes, rows of whole quads
  std::int32_t n_tensors;
  DeviceColumns tensors[kMostSegments];  // none of width 0
  // Of one launch, set by it.
  std::int32_t first_column;
  std::int32_t end_column;
  std::int32_t row_threads;
  std::int32_t block_rows;
};

/// One kernel on `stream` of `device`. Ids are trusted. Rows are counted where they may sleep and
/// no step is taken. Reads and writes 28 bytes a value, 24 where there is no step. Returns before
/// it is done, never synchronises. Throws gs::CudaError when the launch fails.
void launch_device_slots(DeviceSlots job, int device, cuda::StreamView stream);

}  // namespace gs::adam
