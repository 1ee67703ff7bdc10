// SPDX-License-Identifier: Apache-2.0
// Ids outside their table that kernels met: skipped on the device, raised on the host.
#pragma once

#include <cstdint>

namespace gs::pinned {

/// Written by kernels and host functions in page-locked memory of the module, read by the host.
/// One record is kept, of whichever bad id came last.
struct Fault {
  volatile std::uint32_t met;
  volatile std::int64_t id;
  volatile std::int64_t rows;
};

/// The module's record, made by the first transfer on a device. Page-locked, never freed. Throws
/// gs::MemoryError.
Fault* fault_record(int device);

/// Throws gs::RangeError when a kernel has met a bad id since the last call; what ran on a stream
/// counts once the stream has passed it.
void raise_faults();

}  // namespace gs::pinned
