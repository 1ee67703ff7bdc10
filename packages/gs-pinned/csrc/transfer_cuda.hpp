// SPDX-License-Identifier: Apache-2.0
// The same transfers by kernels and copy engines; compiled only with CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fault.hpp"
#include "gs/cuda/stream_view.hpp"
#include "transfer.hpp"

namespace gs::pinned {

constexpr std::int64_t kWidestAccess = 16;  // bytes that a thread reads or writes at once

/// Where a launch goes. Nothing here is owned.
struct Launch {
  int device = 0;
  cuda::StreamView stream;
  int max_blocks = 16;  // bounds the multiprocessors used
  Fault* fault = nullptr;
  bool over_link = true;  // whole rows lie in host memory
};

/// Enqueues one transfer whose pointers the device can read and write, ids in device memory. Rows
/// with ids out of range are left alone and recorded in launch.fault. Never synchronises. Throws
/// gs::CudaError.
void transfer_on_device(const Transfer& transfer, const Launch& launch);

constexpr int kMostTogether = 2;

/// The same for up to kMostTogether copies in one launch. Whole rows of each are one part, of the
/// same number of bytes.
void transfer_together_on_device(const std::vector<Transfer>& transfers, const Launch& launch);

/// Enqueues a copy of rows without ids by a copy engine, cut at the given byte offsets of `whole`
/// (ascending), because one copy must not cross from one registered chunk to the next. Needs one
/// part of whole rows, dense on both sides.
void copy_dense(const Transfer& transfer, const std::vector<std::size_t>& cuts,
                const Launch& launch);

/// Whether copy_dense can do it.
bool is_dense_copy(const Transfer& transfer);

/// Loads every kernel of this module now, once per device. A kernel is otherwise loaded by its
/// first launch, which may wait for all work of the device - for ever, where a stream waits for the
/// very thread that launches.
void load_kernels(int device);

/// Whether kernels of `device` can read this host address.
bool is_device_visible(const void* host, int device);

}  // namespace gs::pinned
