// SPDX-License-Identifier: Apache-2.0
// Rows in slots of device memory, caught up elsewhere by one kernel.
#pragma once

#include <cstdint>

#include "device_slots.hpp"
#include "gs/cuda/stream_view.hpp"
#include "kernel.hpp"

namespace gs::adam {

/// Columns of the rows that are one tensor's, from the end of the tensor before on.
struct LookaheadColumns {
  std::int32_t end;
  std::int32_t width;
  float* out;  // [n_rows, width], contiguous
  DeviceSleep sleep;
};

struct DeviceLookahead {
  const float* param;  // [slots, width] each, contiguous
  const float* exp_avg;
  const float* exp_avg_sq;
  Ids slots;                      // [n_rows] rows of the tables
  Ids ids;                        // [n_rows] rows of last_step
  const std::int32_t* last_step;  // null: rows do not sleep
  std::int32_t target;            // the step that rows are brought to
  std::int32_t width;
  bool has_quads;  // tables aligned to 16 bytes, rows of whole quads
  std::int32_t n_tensors;
  LookaheadColumns tensors[kMostSegments];  // none of width 0
  // Of one launch, set by it.
  std::int32_t first_column;
  std::int32_t end_column;
  std::int32_t row_threads;
  std::int32_t block_rows;
};

/// One kernel on `stream` of `device` for each 1024 columns of a row. Ids are trusted. Reads 12
/// bytes a value of a row that sleeps, else 4, and writes 4. Returns before it is done, never
/// synchronises. Throws gs::CudaError when the launch fails.
void launch_device_lookahead(DeviceLookahead job, int device, cuda::StreamView stream);

}  // namespace gs::adam
