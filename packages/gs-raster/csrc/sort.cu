// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction of products and sums: counting and listing take the same tiles.
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "cutter.hpp"
#include "gs/cuda/check.hpp"
#include "launch.cuh"
#include "listing.cuh"
#include "reach.cuh"
#include "sort.hpp"
#include "ties.cuh"
#include "warp.cuh"

namespace gs::raster {

namespace {

__device__ __forceinline__ std::int64_t global_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

__global__ void __launch_bounds__(kThreads)
    depth_keys_kernel(const Splat* __restrict__ splats, std::int64_t n, DepthKeys keys) {
  const std::int64_t i = global_thread();
  if (i < n) put_depth_key(keys, i, splats[i].columns, splats[i].depth);
}

__global__ void __launch_bounds__(kThreads)
    count_kernel(const Splat* __restrict__ splats, const std::int32_t* __restrict__ order,
                 std::int64_t n, Grid grid, std::uint32_t* __restrict__ counts,
                 unsigned long long* __restrict__ total) {
  const std::int64_t k = global_thread();
  std::uint32_t count = 0;
  if (k < n) {
    const TileSpans spans(load(splats, order[k]), grid);
    for (int row = spans.row_begin(); row < spans.row_end(); ++row)
      count += static_cast<std::uint32_t>(spans[row].length());
    counts[k] = count;
  }
  // A warp's splats touch fewer than 2^37 tiles.
  unsigned long long sum = count;
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, half);
  if (threadIdx.x % 32 == 0 && sum != 0) atomicAdd(total, sum);
}

/// Reads sorted instances into the lists.
__global__ void __launch_bounds__(kThreads)
    finish_kernel(const std::uint32_t* __restrict__ tiles, const std::int32_t* sorted,
                  const std::int32_t* __restrict__ splat_of_slot, std::uint32_t n_tiles,
                  TileLists lists) {
  const std::int64_t p = global_thread();
  if (p >= lists.room) return;
  const std::uint32_t tile = tiles[p];
  for (std::uint32_t t = p == 0 ? 0 : tiles[p - 1] + 1; t <= tile; ++t)
    lists.begins[t] = static_cast<std::uint32_t>(p);
  if (p == lists.room - 1)
    for (std::uint32_t t = tile + 1; t <= n_tiles; ++t)
      lists.begins[t] = static_cast<std::uint32_t>(lists.room);
  const std::int32_t slot = sorted[p];
  lists.slots[p] = slot;
  if (tile < n_tiles) lists.splats[p] = splat_of_slot[slot];
}

/// Rows and instances are fewer than 2^31; sorts with 32-bit places are faster.
int items(std::int64_t n) { return static_cast<int>(n); }

int bits_of(std::uint32_t most) {
  int bits = 1;
  while (bits < 32 && most >> bits != 0) ++bits;
  return bits;
}

struct KeyArrays {
  std::uint32_t* depths[2];
  std::int32_t* numbers[2];
  TieArrays ties;

  KeyArrays(Cutter& cutter, std::int64_t n) {
    for (auto& array : depths) array = cutter.take<std::uint32_t>(n);
    for (auto& array : numbers) array = cutter.take<std::int32_t>(n);
    ties = TieArrays(cutter, n);
  }
};

struct OrderArrays : KeyArrays {
  std::size_t cub_bytes = 0;
  void* cub_workspace;

  OrderArrays(Cutter& cutter, std::int64_t n) : KeyArrays(cutter, n) {
    cub::DoubleBuffer<std::uint32_t> keys(nullptr, nullptr);
    cub::DoubleBuffer<std::int32_t> values(nullptr, nullptr);
    GS_CUDA_TRY(cub::DeviceRadixSort::SortPairs(nullptr, cub_bytes, keys, values, items(n)));
    cub_workspace = cutter.take_bytes(cub_bytes);
  }
};

struct CountArrays {
  std::size_t cub_bytes = 0;
  void* cub_workspace;

  CountArrays(Cutter& cutter, std::int64_t n) {
    std::uint32_t* const none = nullptr;
    GS_CUDA_TRY(cub::DeviceScan::InclusiveSum(nullptr, cub_bytes, none, none, items(n)));
    cub_workspace = cutter.take_bytes(cub_bytes);
  }
};

struct ListArrays {
  std::uint32_t* tiles[2];
  std::int32_t *slots, *splat_of_slot;
  int bits;
  std::size_t cub_bytes = 0;
  void* cub_workspace;

  ListArrays(Cutter& cutter, std::int64_t room, const Rect& rect)
      : bits(bits_of(static_cast<std::uint32_t>(Grid(rect).n_tiles()))) {
    for (auto& array : tiles) array = cutter.take<std::uint32_t>(room);
    slots = cutter.take<std::int32_t>(room);
    splat_of_slot = cutter.take<std::int32_t>(room);
    cub::DoubleBuffer<std::uint32_t> keys(nullptr, nullptr);
    cub::DoubleBuffer<std::int32_t> values(nullptr, nullptr);
    GS_CUDA_TRY(
        cub::DeviceRadixSort::SortPairs(nullptr, cub_bytes, keys, values, items(room), 0, bits));
    cub_workspace = cutter.take_bytes(cub_bytes);
  }
};

}  // namespace

std::size_t order_workspace_bytes(std::int64_t n) {
  Cutter cutter;
  OrderArrays(cutter, n);
  return cutter.used();
}

DepthKeys depth_keys_in(void* workspace, std::int64_t n, std::uint64_t* total) {
  Cutter cutter(workspace);
  const KeyArrays arrays(cutter, n);
  return {arrays.depths[0], arrays.numbers[0], arrays.ties.n_long, total};
}

void order_splats(const Splat* splats, const Keys& keys, std::int64_t n, std::int32_t* order,
                  void* workspace, std::size_t workspace_bytes, cuda::StreamView stream) {
  if (n == 0) return;
  depth_keys_kernel<<<blocks_for(n), kThreads, 0, stream.get()>>>(
      splats, n, depth_keys_in(workspace, n, nullptr));
  GS_CUDA_TRY(cudaGetLastError());
  order_by_depth(keys, n, order, workspace, workspace_bytes, stream);
}

void order_by_depth(const Keys& keys, std::int64_t n, std::int32_t* order, void* workspace,
                    std::size_t workspace_bytes, cuda::StreamView stream) {
  if (n == 0) return;
  Cutter cutter(workspace);
  OrderArrays arrays(cutter, n);
  cutter.check(workspace_bytes);
  cub::DoubleBuffer<std::uint32_t> depths(arrays.depths[0], arrays.depths[1]);
  cub::DoubleBuffer<std::int32_t> numbers(arrays.numbers[0], arrays.numbers[1]);
  GS_CUDA_TRY(cub::DeviceRadixSort::SortPairs(arrays.cub_workspace, arrays.cub_bytes, depths,
                                              numbers, items(n), 0, 32, stream.get()));
  break_ties(depths.Current(), numbers.Current(), keys, n, order, arrays.ties, stream);
}

std::size_t count_workspace_bytes(std::int64_t n) {
  Cutter cutter;
  CountArrays(cutter, n);
  return cutter.used();
}

void count_instances(const Splat* splats, const std::int32_t* order, std::int64_t n,
                     const Rect& rect, std::uint32_t* ends, std::uint64_t* total, void* workspace,
                     std::size_t workspace_bytes, cuda::StreamView stream) {
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t), "totals have 64 bits");
  if (n == 0) return;
  Cutter cutter(workspace);
  CountArrays arrays(cutter, n);
  cutter.check(workspace_bytes);
  count_kernel<<<blocks_for(n), kThreads, 0, stream.get()>>>(
      splats, order, n, Grid(rect), ends, reinterpret_cast<unsigned long long*>(total));
  GS_CUDA_TRY(cudaGetLastError());
  GS_CUDA_TRY(cub::DeviceScan::InclusiveSum(arrays.cub_workspace, arrays.cub_bytes, ends, ends,
                                            items(n), stream.get()));
}

std::size_t list_workspace_bytes(std::int64_t room, const Rect& rect) {
  Cutter cutter;
  ListArrays(cutter, room, rect);
  return cutter.used();
}

void list_instances(const Splat* splats, const std::int32_t* order, std::int64_t n,
                    const Rect& rect, const std::uint32_t* ends, const std::uint64_t* total,
                    const TileLists& lists, const Report& report, void* workspace,
                    std::size_t workspace_bytes, cuda::StreamView stream) {
  const Grid grid(rect);
  Cutter cutter(workspace);
  ListArrays arrays(cutter, lists.room, rect);
  cutter.check(workspace_bytes);
  const auto n_tiles = static_cast<std::uint32_t>(grid.n_tiles());
  const auto* const n_instances = reinterpret_cast<const unsigned long long*>(total);
  // At least one, to report.
  const std::int64_t n_warps = std::max(listing::n_shares(n, lists.room), std::int64_t{1});
  listing::list_kernel<<<blocks_for(n_warps * kWarp), kThreads, 0, stream.get()>>>(
      splats, order, n, ends, n_instances, lists.room, grid,
      listing::Instances{arrays.tiles[0], arrays.splat_of_slot, arrays.slots}, lists.firsts,
      lists.counts, report);
  GS_CUDA_TRY(cudaGetLastError());
  if (lists.room == 0) {
    GS_CUDA_TRY(
        cudaMemsetAsync(lists.begins, 0, (n_tiles + 1) * sizeof(*lists.begins), stream.get()));
    return;
  }
  cub::DoubleBuffer<std::uint32_t> tiles(arrays.tiles[0], arrays.tiles[1]);
  cub::DoubleBuffer<std::int32_t> slots(arrays.slots, lists.slots);
  GS_CUDA_TRY(cub::DeviceRadixSort::SortPairs(arrays.cub_workspace, arrays.cub_bytes, tiles, slots,
                                              items(lists.room), 0, arrays.bits, stream.get()));
  finish_kernel<<<blocks_for(lists.room), kThreads, 0, stream.get()>>>(
      tiles.Current(), slots.Current(), arrays.splat_of_slot, n_tiles, lists);
  GS_CUDA_TRY(cudaGetLastError());
}

}  // namespace gs::raster
