// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "gs/cuda/stream_view.hpp"

namespace gs::cull {

/// As the host's pair_counts(), with device pointers; bits at or above B count for nothing, and
/// together must be zeroed. Enqueues on `stream` of the current device, allocates nothing, throws
/// gs::CudaError.
void pair_counts(const std::uint32_t* mask, std::int64_t n, int n_views,
                 unsigned long long* together, cuda::StreamView stream);

}  // namespace gs::cull
