// SPDX-License-Identifier: Apache-2.0
// Whether, and why not, this process can use a CUDA device.
#pragma once

#include <cstdint>
#include <string>

#include "gs/cuda/stream_view.hpp"

namespace gs::pinned {

/// Why no CUDA device can be used: built without CUDA, no driver, no device. Empty when one can.
std::string device_problem();

/// The device of a stream, where this build's CUDA (12.8 on) can tell; of the default stream, which
/// every device has, and elsewhere `otherwise`.
int device_of_stream(cuda::StreamView stream, int otherwise);

/// CUDA devices of this process; 0 wherever device_problem() is not empty.
int device_count();

/// The newest CUDA version that the driver supports, as 1000 * major + 10 * minor; 0 without one.
int driver_version();

}  // namespace gs::pinned
