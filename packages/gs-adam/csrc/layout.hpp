// SPDX-License-Identifier: Apache-2.0
// How the columns of a call's tensors are cut into vectors, and which memory a row lies in.
#pragma once

#include "kernel.hpp"

namespace gs::adam {

/// Cuts columns into items of `lanes`, across tensors that lie side by side, and fills in their
/// constants. `items` has room for 2 * kMostSegments. Returns their number.
int cut_items(const Segment* segments, int n_segments, int lanes, Item* items);

/// The memory of a job's rows; tensors that lie side by side share lines.
void list_lines(const Job& job, Ahead* ahead);

}  // namespace gs::adam
