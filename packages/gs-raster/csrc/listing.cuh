// SPDX-License-Identifier: Apache-2.0
// The instances of splats, splat by splat, in equal shares for all warps.
//
// One splat may reach every tile and another none, so a share is not a number of splats. Splats lie
// on a path, each followed by its instances and the last by the room that is left, and every warp
// has the same length of the path. Within a share, first each lane is a row of tiles of some splat,
// then each lane is an instance: it is written next to its neighbours.
#pragma once

#include "launch.cuh"
#include "reach.cuh"
#include "sort_source.cuh"
#include "warp.cuh"

namespace gs::raster {

__device__ __forceinline__ Splat load(const Splat* splats, std::int32_t i) {
  const float4* const words = reinterpret_cast<const float4*>(splats + i);
  Splat splat;
  float4* const out = reinterpret_cast<float4*>(&splat);
#pragma unroll
  for (int w = 0; w < 3; ++w) out[w] = words[w];
  return splat;
}

namespace listing {

constexpr int kBlocks = 4;   // that a multiprocessor holds together
constexpr int kShare = 256;  // splats, instances and left room of a warp, together

/// Warps for n splats and room for `room` instances.
inline std::int64_t n_shares(std::int64_t n, std::int64_t room) {
  return ceil_div(n + room, kShare);
}

/// Sum over the lanes up to this one.
__device__ __forceinline__ std::uint32_t sum_to_lane(std::uint32_t value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const std::uint32_t below = __shfl_up_sync(kWholeWarp, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

/// The first lane whose sum_to_lane() is above `place`; the last lane where there is none.
__device__ __forceinline__ int lane_at(std::uint32_t sums, std::uint32_t place) {
  int lane = 0;
#pragma unroll
  for (int step = kWarp / 2; step >= 1; step /= 2)
    if (__shfl_sync(kWholeWarp, sums, lane + step - 1) <= place) lane += step;
  return lane;
}

/// What another lane holds: the same bits.
template <class T>
__device__ __forceinline__ T from_lane(const T& value, int lane) {
  static_assert(sizeof(T) % sizeof(std::uint32_t) == 0, "lanes exchange words");
  T found = value;
  auto* const words = reinterpret_cast<std::uint32_t*>(&found);
#pragma unroll
  for (std::size_t w = 0; w < sizeof(T) / sizeof(std::uint32_t); ++w)
    words[w] = __shfl_sync(kWholeWarp, words[w], lane);
  return found;
}

/// Splats in their order, each followed by its instances.
struct Path {
  const std::uint32_t* ends;  // (n,) instances of the first k + 1 splats
  std::int64_t n;
  bool empty;  // as if no splat had an instance

  /// Instances of the first k splats.
  __device__ __forceinline__ std::int64_t slot(std::int64_t k) const {
    return empty || k == 0 ? 0 : ends[k - 1];
  }
  __device__ __forceinline__ std::int64_t place(std::int64_t k) const { return k + slot(k); }

  /// The last splat whose place is at most `at`. All lanes of the warp together, for n > 0.
  __device__ __forceinline__ std::int64_t splat_at(std::int64_t at) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    std::int64_t low = 0, high = n;
    while (high - low > 1) {
      const std::int64_t step = (high - low + kWarp - 1) / kWarp, k = low + lane * step;
      const unsigned before = __ballot_sync(kWholeWarp, k < high && place(k) <= at);
      low += (__popc(before) - 1) * step;
      high = min(low + step, high);
    }
    return low;
  }
};

/// Instances by slot, all (room,).
struct Instances {
  std::uint32_t* tiles;         // of the rectangle's grid
  std::int32_t* splat_of_slot;  // left alone where there is no instance
  std::int32_t* slots;          // their own numbers
};

/// Slots that no instance has get the tile behind the last.
template <class Source>
__global__ void __launch_bounds__(kThreads, kBlocks)
    list_kernel(Source source, const std::int32_t* __restrict__ order,
                const std::uint32_t* __restrict__ ends, std::int64_t room, Instances out) {
  const Splat* __restrict__ const splats = source.job().splats;
  const Grid grid(source.job().rect);
  const std::int64_t n = source.job().n;
  const unsigned long long total = *source.job().total;
  std::uint32_t* __restrict__ const firsts = source.job().lists.firsts;
  std::uint32_t* __restrict__ const counts = source.job().lists.counts;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool fits = total <= static_cast<unsigned long long>(room);
  if (thread == 0) {
    const Report report = source.job().report;
    if (!fits && report.overflowed != nullptr) *report.overflowed = 1;
    if (report.n_instances != nullptr) *report.n_instances = total;
  }
  const std::int64_t n_listed = fits ? static_cast<std::int64_t>(total) : 0;
  const std::int64_t low = thread / kWarp * kShare, high = low + kShare;
  for (std::int64_t slot = max(low - n, n_listed) + lane; slot < min(high - n, room);
       slot += kWarp) {
    out.tiles[slot] = static_cast<std::uint32_t>(grid.n_tiles());
    out.slots[slot] = static_cast<std::int32_t>(slot);
  }
  if (low >= n + n_listed) return;

  const Path path{ends, n, !fits};
  for (std::int64_t first = path.splat_at(low); first < n && path.place(first) < high;
       first += kWarp) {
    const std::int64_t k = first + lane;
    const bool mine = k < n && path.place(k) < high;
    std::int32_t splat = 0;
    std::int64_t begin = 0, end = 0;
    if (mine) {
      splat = order[k];
      begin = path.slot(k), end = path.slot(k + 1);
      if (path.place(k) >= low) {
        firsts[splat] = static_cast<std::uint32_t>(begin);
        counts[splat] = static_cast<std::uint32_t>(end - begin);
      }
    }
    // Instance `slot` of splat k is at k + 1 + slot.
    const std::int64_t behind = first + __popc(__ballot_sync(kWholeWarp, mine));
    const std::int64_t from = max(path.slot(first), low - (first + 1));
    const std::int64_t to = min(path.slot(behind), high - behind);

    const TileSpans spans(begin != end ? load(splats, splat) : Splat{}, grid);
    const int n_rows = begin != end ? spans.row_end() - spans.row_begin() : 0;
    const std::uint32_t rows_to_lane = sum_to_lane(static_cast<std::uint32_t>(n_rows));
    const int n_rows_of_warp = static_cast<int>(__shfl_sync(kWholeWarp, rows_to_lane, kWarp - 1));
    std::int64_t at = path.slot(first);
    for (int rows = 0; rows < n_rows_of_warp && at < to; rows += kWarp) {
      const int r = rows + lane;
      const int owner = lane_at(rows_to_lane, static_cast<std::uint32_t>(r));
      const TileSpans its = from_lane(spans, owner);
      const std::int32_t its_splat = from_lane(splat, owner);
      const int row =
          its.row_begin() + r - from_lane(static_cast<int>(rows_to_lane) - n_rows, owner);
      const Span span = r < n_rows_of_warp ? its[row] : Span{0, 0};
      const auto n_tiles = static_cast<std::uint32_t>(span.length());
      const std::uint32_t tiles_to_lane = sum_to_lane(n_tiles);
      const std::uint32_t tile =  // of the lane's first instance, less the instances before it
          static_cast<std::uint32_t>((row - grid.row0) * grid.columns() + span.begin -
                                     grid.column0) -
          (tiles_to_lane - n_tiles);
      const std::int64_t next = at + __shfl_sync(kWholeWarp, tiles_to_lane, kWarp - 1);
      for (std::int64_t slots = max(at, from); slots < min(next, to); slots += kWarp) {
        const std::int64_t slot = slots + lane;
        const auto place = static_cast<std::uint32_t>(slot - at);
        const int holder = lane_at(tiles_to_lane, place);
        const std::uint32_t first_tile = __shfl_sync(kWholeWarp, tile, holder);
        const std::int32_t its_number = __shfl_sync(kWholeWarp, its_splat, holder);
        if (slot < min(next, to)) {
          out.tiles[slot] = first_tile + place;
          out.splat_of_slot[slot] = its_number;
          out.slots[slot] = static_cast<std::int32_t>(slot);
        }
      }
      at = next;
    }
  }
}

}  // namespace listing
}  // namespace gs::raster
