// SPDX-License-Identifier: Apache-2.0
// How many rows two views share, for all pairs of a batch, straight from the masks.
#pragma once

#include <cstdint>

namespace gs {
class ThreadPool;
}

namespace gs::cull {

/// together: (B, B), entry (i, j) the rows whose mask has bits i and j. mask: (n, ceil(B / 32)),
/// without a bit at or above B. On host threads.
void pair_counts(ThreadPool& pool, const std::uint32_t* mask, std::int64_t n, int n_views,
                 std::int64_t* together);

}  // namespace gs::cull
