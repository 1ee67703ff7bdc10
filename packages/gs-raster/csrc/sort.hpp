// SPDX-License-Identifier: Apache-2.0
// Which splats touch which tile, front to back, on a CUDA device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "depth_keys.hpp"
#include "graph_cache.hpp"
#include "gs/cuda/stream_view.hpp"
#include "sort_job.hpp"

namespace gs::raster {

/// Bytes of workspace for order_splats().
std::size_t order_workspace_bytes(std::int64_t n);

/// order: (n,) splats by depth, those of equal depth by key, those that do not show last.
///
/// Enqueued on `stream`; does not synchronise. Throws gs::CudaError.
void order_splats(const Splat* splats, const Keys& keys, std::int64_t n, std::int32_t* order,
                  void* workspace, std::size_t workspace_bytes, cuda::StreamView stream);

/// Bytes of workspace for count_instances().
std::size_t count_workspace_bytes(std::int64_t n);

/// ends: (n,) instances of the first k + 1 splats of `order` in the rectangle, modulo 2^32;
/// total: how many there are, in 64 bits; 0 before.
void count_instances(const Splat* splats, const std::int32_t* order, std::int64_t n,
                     const Rect& rect, std::uint32_t* ends, std::uint64_t* total, void* workspace,
                     std::size_t workspace_bytes, cuda::StreamView stream);

/// Bytes of workspace for list_instances().
std::size_t list_workspace_bytes(std::int64_t room, const Rect& rect);

/// Fills `lists`, which stay empty where there is not enough room. ends and total are those of
/// count_instances() for the same order and rectangle.
void list_instances(const Splat* splats, const std::int32_t* order, std::int64_t n,
                    const Rect& rect, const std::uint32_t* ends, std::uint64_t* total,
                    const TileLists& lists, void* workspace, std::size_t workspace_bytes,
                    cuda::StreamView stream);

/// All of these for n splats of a rectangle, with what they leave to each other.
class ViewSort {
 public:
  ViewSort(std::int64_t n, std::int64_t room, const Rect& rect);

  /// Bytes of workspace.
  std::size_t workspace_bytes() const;

  /// What must have been put into the workspace before run(); `job` has no total of its own.
  DepthKeys keys_in(void* workspace, std::size_t workspace_bytes, SortJob job) const;

  /// Puts it there, of splats that were projected elsewhere.
  void put_keys(void* workspace, std::size_t workspace_bytes, const SortJob& job,
                cuda::StreamView stream) const;

  /// Fills the lists of the job and says how many instances there were. All that is launched
  /// depends on the workspace's address, on the room, on the magnitudes of n and of the number of
  /// tiles, and on whether there are keys: it is a graph of `cache`, if there is one.
  void run(bool has_keys, void* workspace, std::size_t workspace_bytes, GraphCache* cache,
           cuda::StreamView stream) const;

 private:
  std::int64_t n_places_, room_;
  Rect rect_;
};

}  // namespace gs::raster
