// SPDX-License-Identifier: Apache-2.0
// Transfers between a device and rows that it can't see; compiled only with CUDA.
#pragma once

#include "transfer_cuda.hpp"

namespace gs::pinned {

/// Enqueues a transfer whose `whole` is pageable host memory: host functions move the rows between
/// it and a locked buffer of the module, kernels between that buffer and the device. Ordered by the
/// stream like any other transfer, and never synchronises; transfers of different streams take
/// turns at the buffer. Throws gs::CudaError, gs::MemoryError when not even the buffer can be
/// locked.
void transfer_staged(const Transfer& transfer, const Launch& launch);

}  // namespace gs::pinned
