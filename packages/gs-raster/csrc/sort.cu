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

/// Of n splats.
__global__ void __launch_bounds__(kThreads)
    depth_keys_kernel(const Splat* __restrict__ splats, std::int64_t n, DepthKeys keys) {
  const std::int64_t i = global_thread();
  if (i < n)
    put_depth_key(keys, i, splats[i].columns, splats[i].depth);
  else if (i < keys.n)
    put_depth_key(keys, i, 0, 0.0f);
}

void put_depth_keys(const Splat* splats, std::int64_t n, const DepthKeys& keys,
                    cuda::StreamView stream) {
  depth_keys_kernel<<<blocks_for(std::max(n, keys.n)), kThreads, 0, stream.get()>>>(splats, n,
                                                                                    keys);
  GS_CUDA_TRY(cudaGetLastError());
}

/// counts: (n_places,), 0 behind the splats.
template <class Source>
__global__ void __launch_bounds__(kThreads)
    count_kernel(Source source, const std::int32_t* __restrict__ order, std::int64_t n_places,
                 std::uint32_t* __restrict__ counts) {
  const std::int64_t k = global_thread();
  std::uint32_t count = 0;
  if (k < source.job().n) {
    const TileSpans spans(load(source.job().splats, order[k]), Grid(source.job().rect));
    for (int row = spans.row_begin(); row < spans.row_end(); ++row)
      count += static_cast<std::uint32_t>(spans[row].length());
  }
  if (k < n_places) counts[k] = count;
  // A warp's splats touch fewer than 2^37 tiles.
  unsigned long long sum = count;
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, half);
  if (threadIdx.x % 32 == 0 && sum != 0) atomicAdd(source.job().total, sum);
}

/// Reads sorted instances into the lists.
template <class Source>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(Source source, const std::uint32_t* __restrict__ tiles,
                  const std::int32_t* sorted, const std::int32_t* __restrict__ splat_of_slot) {
  const std::int64_t p = global_thread();
  const TileLists lists = source.job().lists;
  const auto n_tiles = static_cast<std::uint32_t>(Grid(source.job().rect).n_tiles());
  const auto room = static_cast<std::uint32_t>(lists.room);
  if (p >= lists.room) {
    if (room == 0 && p <= n_tiles) lists.begins[p] = 0;
    return;
  }
  const std::uint32_t tile = tiles[p];
  for (std::uint32_t t = p == 0 ? 0 : tiles[p - 1] + 1; t <= tile; ++t)
    lists.begins[t] = static_cast<std::uint32_t>(p);
  if (p == lists.room - 1)
    for (std::uint32_t t = tile + 1; t <= n_tiles; ++t) lists.begins[t] = room;
  const std::int32_t slot = sorted[p];
  lists.slots[p] = slot;
  if (tile < n_tiles) lists.splats[p] = splat_of_slot[slot];
}

/// Rows and instances are fewer than 2^31; sorts with 32-bit places are faster.
int items(std::int64_t n) { return static_cast<int>(n); }

/// n pairs to be sorted, in one of two places.
struct Pairs {
  std::uint32_t* keys[2];
  std::int32_t* values[2];

  Pairs(Cutter& cutter, std::int64_t n) {
    for (auto& array : keys) array = cutter.take<std::uint32_t>(n);
    for (auto& array : values) array = cutter.take<std::int32_t>(n);
  }

  /// Sorts by the lowest `bits` of the keys, stably, from the first place on; returns the place
  /// where the pairs are then. Of no workspace, only its bytes are told.
  int sort(std::int64_t n, int bits, void* workspace, std::size_t& workspace_bytes,
           cudaStream_t stream) const {
    cub::DoubleBuffer<std::uint32_t> by(keys[0], keys[1]);
    cub::DoubleBuffer<std::int32_t> of(values[0], values[1]);
    GS_CUDA_TRY(cub::DeviceRadixSort::SortPairs(workspace, workspace_bytes, by, of, items(n), 0,
                                                bits, stream));
    return by.selector;
  }
};

/// What cub needs besides the pairs, to sort them by the lowest `bits`.
struct SortSpace {
  int bits;
  std::size_t n_bytes = 0;
  void* data;

  SortSpace(Cutter& cutter, const Pairs& pairs, std::int64_t n, int n_bits) : bits(n_bits) {
    pairs.sort(n, bits, nullptr, n_bytes, nullptr);
    data = cutter.take_bytes(n_bytes);
  }

  /// Returns the place of the pairs that is sorted.
  int sort(const Pairs& pairs, std::int64_t n, cuda::StreamView stream) {
    return pairs.sort(n, bits, data, n_bytes, stream.get());
  }
};

/// CUDA's atomic sums are of this type.
unsigned long long* in_64_bits(std::uint64_t* total) {
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
  return reinterpret_cast<unsigned long long*>(total);
}

int bits_of(std::uint32_t most) {
  int bits = 1;
  while (bits < 32 && most >> bits != 0) ++bits;
  return bits;
}

/// Depths of splats with the splats' numbers.
struct DepthArrays {
  TieArrays ties;
  Pairs pairs;

  DepthArrays(Cutter& cutter, std::int64_t n) : ties(cutter, n), pairs(cutter, n) {}

  DepthKeys keys(std::int64_t n, const SortJob& job, SortJob* place_of_job) const {
    return {n, pairs.keys[0], pairs.values[0], ties.n_long, job, place_of_job};
  }
};

struct OrderArrays : DepthArrays {
  SortSpace space;

  OrderArrays(Cutter& cutter, std::int64_t n)
      : DepthArrays(cutter, n), space(cutter, pairs, n, 32) {}
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

/// Tiles of instances with the instances' slots.
struct ListArrays {
  std::int32_t* splat_of_slot;
  Pairs pairs;
  SortSpace space;

  ListArrays(Cutter& cutter, std::int64_t room, int n_tiles)
      : splat_of_slot(cutter.take<std::int32_t>(room)),
        pairs(cutter, room),
        space(cutter, pairs, room, bits_of(static_cast<std::uint32_t>(n_tiles))) {}
};

/// What lies first in the workspace of a ViewSort. The stages take turns with the rest.
struct ViewArrays {
  SortJob* job;
  unsigned long long* total;
  std::int32_t* order;
  std::uint32_t* ends;

  ViewArrays(Cutter& cutter, std::int64_t n_places)
      : job(cutter.take<SortJob>(1)),
        total(cutter.take<unsigned long long>(1)),
        order(cutter.take<std::int32_t>(n_places)),
        ends(cutter.take<std::uint32_t>(n_places)) {}
};

template <class Source>
void order_by_depth(const Source& source, bool has_keys, std::int64_t n_places, std::int32_t* order,
                    OrderArrays& arrays, cuda::StreamView stream) {
  const Pairs& pairs = arrays.pairs;
  const int sorted = arrays.space.sort(pairs, n_places, stream);
  break_ties(source, has_keys, pairs.keys[sorted], pairs.values[sorted], n_places, order,
             arrays.ties, stream);
}

template <class Source>
void count(const Source& source, const std::int32_t* order, std::int64_t n_places,
           std::uint32_t* ends, CountArrays& arrays, cuda::StreamView stream) {
  count_kernel<<<blocks_for(n_places), kThreads, 0, stream.get()>>>(source, order, n_places, ends);
  GS_CUDA_TRY(cudaGetLastError());
  GS_CUDA_TRY(cub::DeviceScan::InclusiveSum(arrays.cub_workspace, arrays.cub_bytes, ends, ends,
                                            items(n_places), stream.get()));
}

template <class Source>
void list(const Source& source, const std::int32_t* order, std::int64_t n_places,
          const std::uint32_t* ends, std::int64_t room, int n_tiles, ListArrays& arrays,
          cuda::StreamView stream) {
  const Pairs& pairs = arrays.pairs;
  // At least one, to report.
  const std::int64_t n_warps = std::max(listing::n_shares(n_places, room), std::int64_t{1});
  listing::list_kernel<<<blocks_for(n_warps * kWarp), kThreads, 0, stream.get()>>>(
      source, order, ends, room,
      listing::Instances{pairs.keys[0], arrays.splat_of_slot, pairs.values[0]});
  GS_CUDA_TRY(cudaGetLastError());
  const int sorted = room == 0 ? 0 : arrays.space.sort(pairs, room, stream);
  const std::int64_t n_finished = room == 0 ? n_tiles + std::int64_t{1} : room;
  finish_kernel<<<blocks_for(n_finished), kThreads, 0, stream.get()>>>(
      source, pairs.keys[sorted], pairs.values[sorted], arrays.splat_of_slot);
  GS_CUDA_TRY(cudaGetLastError());
}

/// The least number from n on that is one of 8 in each octave, at least 1.
std::int64_t coarse(std::int64_t n) {
  std::int64_t step = 1;
  while (n / step >= 16) step *= 2;
  return std::clamp((n + step - 1) / step * step, std::int64_t{1}, std::int64_t{INT32_MAX});
}

}  // namespace

std::size_t order_workspace_bytes(std::int64_t n) {
  Cutter cutter;
  OrderArrays(cutter, n);
  return cutter.used();
}

void order_splats(const Splat* splats, const Keys& keys, std::int64_t n, std::int32_t* order,
                  void* workspace, std::size_t workspace_bytes, cuda::StreamView stream) {
  if (n == 0) return;
  Cutter cutter(workspace);
  OrderArrays arrays(cutter, n);
  cutter.check(workspace_bytes);
  const SortJob job{n, splats, keys};
  put_depth_keys(splats, n, arrays.keys(n, job, nullptr), stream);
  order_by_depth(GivenJob{job}, keys.keys != nullptr, n, order, arrays, stream);
}

std::size_t count_workspace_bytes(std::int64_t n) {
  Cutter cutter;
  CountArrays(cutter, n);
  return cutter.used();
}

void count_instances(const Splat* splats, const std::int32_t* order, std::int64_t n,
                     const Rect& rect, std::uint32_t* ends, std::uint64_t* total, void* workspace,
                     std::size_t workspace_bytes, cuda::StreamView stream) {
  if (n == 0) return;
  Cutter cutter(workspace);
  CountArrays arrays(cutter, n);
  cutter.check(workspace_bytes);
  count(GivenJob{{n, splats, {}, rect, in_64_bits(total)}}, order, n, ends, arrays, stream);
}

std::size_t list_workspace_bytes(std::int64_t room, const Rect& rect) {
  Cutter cutter;
  ListArrays(cutter, room, Grid(rect).n_tiles());
  return cutter.used();
}

void list_instances(const Splat* splats, const std::int32_t* order, std::int64_t n,
                    const Rect& rect, const std::uint32_t* ends, std::uint64_t* total,
                    const TileLists& lists, void* workspace, std::size_t workspace_bytes,
                    cuda::StreamView stream) {
  Cutter cutter(workspace);
  const int n_tiles = Grid(rect).n_tiles();
  ListArrays arrays(cutter, lists.room, n_tiles);
  cutter.check(workspace_bytes);
  list(GivenJob{{n, splats, {}, rect, in_64_bits(total), lists}}, order, n, ends, lists.room,
       n_tiles, arrays, stream);
}

ViewSort::ViewSort(std::int64_t n, std::int64_t room, const Rect& rect)
    : n_places_(coarse(n)), room_(room), rect_(rect) {}

std::size_t ViewSort::workspace_bytes() const {
  Cutter cutter;
  const ViewArrays arrays(cutter, n_places_);
  return cutter.used() +
         std::max({order_workspace_bytes(n_places_), count_workspace_bytes(n_places_),
                   list_workspace_bytes(room_, rect_)});
}

DepthKeys ViewSort::keys_in(void* workspace, std::size_t workspace_bytes, SortJob job) const {
  Cutter cutter(workspace);
  const ViewArrays arrays(cutter, n_places_);
  job.total = arrays.total;
  const DepthArrays depths(cutter, n_places_);
  cutter.check(workspace_bytes);
  return depths.keys(n_places_, job, arrays.job);
}

void ViewSort::put_keys(void* workspace, std::size_t workspace_bytes, const SortJob& job,
                        cuda::StreamView stream) const {
  put_depth_keys(job.splats, job.n, keys_in(workspace, workspace_bytes, job), stream);
}

void ViewSort::run(bool has_keys, void* workspace, std::size_t workspace_bytes, GraphCache* cache,
                   cuda::StreamView stream) const {
  const int n_tiles = Grid(rect_).n_tiles();
  const auto enqueue = [&](cuda::StreamView on) {
    Cutter cutter(workspace);
    const ViewArrays arrays(cutter, n_places_);
    Cutter for_order = cutter, for_count = cutter, for_list = cutter;
    OrderArrays ordered(for_order, n_places_);
    CountArrays counted(for_count, n_places_);
    ListArrays listed(for_list, room_, n_tiles);
    for (const Cutter& used : {for_order, for_count, for_list}) used.check(workspace_bytes);
    const PutJob job{arrays.job};
    order_by_depth(job, has_keys, n_places_, arrays.order, ordered, on);
    count(job, arrays.order, n_places_, arrays.ends, counted, on);
    list(job, arrays.order, n_places_, arrays.ends, room_, n_tiles, listed, on);
  };
  if (cache == nullptr) return enqueue(stream);
  // Without room no instances are sorted, and the lists of all tiles are empty.
  const int tiles = room_ == 0 ? n_tiles : bits_of(static_cast<std::uint32_t>(n_tiles));
  cache->run({reinterpret_cast<std::uintptr_t>(workspace), static_cast<std::uint64_t>(n_places_),
              static_cast<std::uint64_t>(room_),
              2 * static_cast<std::uint64_t>(tiles) + (has_keys ? 1 : 0)},
             stream, enqueue);
}

}  // namespace gs::raster
