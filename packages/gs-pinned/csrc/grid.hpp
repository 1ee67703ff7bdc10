// SPDX-License-Identifier: Apache-2.0
// How many thread blocks a transfer gets.
//
// A multiprocessor that copies is lost to kernels that need a whole one, so the fewest that fill
// the link are best: few large blocks. Measured on an H200 with rows of 192 bytes: 4 blocks of 1024
// threads gather as fast as 16 or 48 of 384, and a large matrix product beside them is 1 % slower
// instead of 23 %.
#pragma once

#include <algorithm>
#include <cstdint>

#include "transfer.hpp"

namespace gs::pinned {

struct Grid {
  unsigned blocks, threads;
};

/// What a launch does to the link.
enum class Traffic { kReads, kExchange, kWritesInOrder, kWrites, kJoinedWrites, kOther };

inline Traffic traffic_of(const Transfer& t, bool over_link) {
  if (!over_link || t.add) return Traffic::kOther;
  // To find the field of every piece takes more multiprocessors than the link does.
  if (t.n_parts > 1) return t.to_parts ? Traffic::kOther : Traffic::kJoinedWrites;
  if (t.to_parts) return Traffic::kReads;
  return t.whole_ids.data || t.parts_ids.data ? Traffic::kWrites : Traffic::kWritesInOrder;
}

/// Blocks for `accesses` of `bytes_each`, of which a thread has `unroll` on their way.
inline Grid grid_for(Traffic traffic, std::int64_t accesses, int unroll, std::int64_t bytes_each,
                     std::int64_t max_blocks) {
  std::int64_t threads = 384, in_flight = INT64_MAX;
  switch (traffic) {
    case Traffic::kReads:
      // 256 KiB on their way fill the link; more take a larger share of it from writes.
      threads = 1024;
      in_flight = (std::int64_t{16} << 10) * std::max<std::int64_t>(max_blocks, 16);
      break;
    case Traffic::kExchange:
      // As many as the caller allows: what is on its way one way holds back the other.
      threads = 1024;
      break;
    case Traffic::kJoinedWrites:
      threads = 640;
      in_flight = 320 << 10;
      break;
    case Traffic::kWrites:
      // A thread that first looks up where its row lies writes later.
      threads = 640;
      [[fallthrough]];
    case Traffic::kWritesInOrder:
      // A write waits for no answer.
      in_flight = 160 << 10;
      break;
    case Traffic::kOther:
      break;
  }
  const auto needed = [](std::int64_t all, std::int64_t one) { return (all - 1) / one + 1; };
  const std::int64_t tile = threads * unroll;
  const std::int64_t blocks =
      std::min(needed(accesses, tile), needed(in_flight, tile * bytes_each));
  return Grid{static_cast<unsigned>(std::min(blocks, max_blocks)), static_cast<unsigned>(threads)};
}

}  // namespace gs::pinned
