// SPDX-License-Identifier: Apache-2.0
// What sorting reads and writes besides its workspace.
#pragma once

#include "splat.hpp"

namespace gs::raster {

/// Numbers that order splats of equal depth: splat i has key keys[slots[i]], distinct, at least 0.
struct Keys {
  const std::int32_t* keys;   // none: the splats' own order
  const std::int32_t* slots;  // (n,), or none: i of splat i
};

/// Instances of a rectangle by tile, front to back within a tile. Device memory.
///
/// An instance also has a slot: its place when instances are grouped by splat. The slots of splat
/// i are firsts[i] to firsts[i] + counts[i].
struct TileLists {
  std::int64_t room;      // at least the instances; else the lists are made empty
  std::uint32_t* begins;  // (n_tiles + 1,) where each tile's instances begin
  std::int32_t* splats;   // (room,)
  std::int32_t* slots;    // (room,)
  std::uint32_t* firsts;  // (n,)
  std::uint32_t* counts;  // (n,)
};

/// Where it is said how many instances there were.
struct Report {
  std::int32_t* overflowed;    // (1,) device, made 1 where they have no room, else left; or none
  std::uint64_t* n_instances;  // (1,) device or page-locked host memory, or none
};

/// The splats of a view, and what becomes of them. A stage reads and writes its part.
struct SortJob {
  std::int64_t n;
  const Splat* splats;  // (n,)
  Keys keys;
  Rect rect;
  unsigned long long* total;  // (1,) instances, in 64 bits
  TileLists lists;
  Report report;
};

}  // namespace gs::raster
