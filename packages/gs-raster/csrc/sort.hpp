// SPDX-License-Identifier: Apache-2.0
// Which splats touch which tile, front to back, on a CUDA device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "depth_keys.hpp"
#include "gs/cuda/stream_view.hpp"
#include "splat.hpp"

namespace gs::raster {

/// Bytes of workspace for order_splats().
std::size_t order_workspace_bytes(std::int64_t n);

/// Numbers that order splats of equal depth: splat i has key keys[slots[i]], distinct, at least 0.
struct Keys {
  const std::int32_t* keys;   // none: the splats' own order
  const std::int32_t* slots;  // (n,), or none: i of splat i
};

/// order: (n,) splats by depth, those of equal depth by key, those that do not show last.
///
/// Enqueued on `stream`; does not synchronise. Throws gs::CudaError.
void order_splats(const Splat* splats, const Keys& keys, std::int64_t n, std::int32_t* order,
                  void* workspace, std::size_t workspace_bytes, cuda::StreamView stream);

/// Where order_by_depth() reads, in a workspace for order_splats().
///
/// total: (1,) is made 0 on the way; or none.
DepthKeys depth_keys_in(void* workspace, std::int64_t n, std::uint64_t* total);

/// order_splats() of splats whose depth keys have been written into its workspace.
void order_by_depth(const Keys& keys, std::int64_t n, std::int32_t* order, void* workspace,
                    std::size_t workspace_bytes, cuda::StreamView stream);

/// Bytes of workspace for count_instances().
std::size_t count_workspace_bytes(std::int64_t n);

/// ends: (n,) instances of the first k + 1 splats of `order` in the rectangle, modulo 2^32;
/// total: how many there are, in 64 bits; 0 before.
void count_instances(const Splat* splats, const std::int32_t* order, std::int64_t n,
                     const Rect& rect, std::uint32_t* ends, std::uint64_t* total, void* workspace,
                     std::size_t workspace_bytes, cuda::StreamView stream);

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

/// Bytes of workspace for list_instances().
std::size_t list_workspace_bytes(std::int64_t room, const Rect& rect);

/// Fills `lists`, which stay empty where there is not enough room. ends and total are those of
/// count_instances() for the same order and rectangle.
void list_instances(const Splat* splats, const std::int32_t* order, std::int64_t n,
                    const Rect& rect, const std::uint32_t* ends, const std::uint64_t* total,
                    const TileLists& lists, const Report& report, void* workspace,
                    std::size_t workspace_bytes, cuda::StreamView stream);

}  // namespace gs::raster
