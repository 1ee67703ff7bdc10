// SPDX-License-Identifier: Apache-2.0
// Rows of a table rearranged in place.
#pragma once

#include <cstdint>

#include "transfer.hpp"

namespace gs::pinned {

/// Row i becomes old row ids[i], i in [0, n), with ids strictly increasing; rows from n on keep
/// their bytes. Parallel; needs at most a few MiB beside the rows. Trusts the ids.
void keep_rows(char* rows, std::int64_t row_bytes, Ids ids, std::int64_t n);

/// Row i becomes old row ids[i] for all rows, ids a permutation of them. Parallel; needs n * 64
/// bytes beside the rows (or a 64th of them if that is more), because a permutation followed cycle
/// by cycle would keep one thread busy alone. Trusts the ids.
void permute_rows(char* rows, std::int64_t row_bytes, Ids ids, std::int64_t n);

/// Throws gs::Error unless the ids are strictly increasing, gs::RangeError unless in [0, rows).
void check_increasing(Ids ids, std::int64_t n, std::int64_t rows, const char* name);

/// Throws gs::Error unless the n ids are each of 0 .. n - 1 once.
void check_permutation(Ids ids, std::int64_t n);

}  // namespace gs::pinned
