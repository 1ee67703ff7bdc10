// SPDX-License-Identifier: Apache-2.0
// Rows of a device's arrays that change places with rows of tables; compiled only with CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "transfer.hpp"
#include "transfer_cuda.hpp"

namespace gs::pinned {

constexpr int kMostSwaps = 4;  // in one launch

/// One table and the array that holds some of its rows. Nothing here is owned.
struct Swap {
  char* table = nullptr;
  std::int64_t table_stride = 0;  // bytes
  char* array = nullptr;
  std::int64_t array_stride = 0;  // bytes
  std::int64_t row_bytes = 0;
};

/// Which rows: row loaded[i] comes to slot slots[i], whose row, from the (n_loaded - n_stored)-th
/// slot on, leaves first, to row stored[i - (n_loaded - n_stored)]. No row leaves and comes, no
/// slot is named twice. All ids of one width, in device memory.
struct Exchanged {
  std::int64_t n_loaded = 0, n_stored = 0;
  Ids loaded, stored, slots;
  std::int64_t table_rows = 0, array_rows = 0;
};

/// Enqueues it for tables that the device can read, in as few launches as their widths allow. Where
/// an id is out of range nothing leaves or comes, and it is recorded in launch.fault. Never
/// synchronises. Throws gs::CudaError.
void exchange_on_device(const std::vector<Swap>& swaps, const Exchanged& rows,
                        const Launch& launch);

/// See load_kernels.
void load_exchange_kernels();

}  // namespace gs::pinned
