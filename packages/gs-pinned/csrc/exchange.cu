// SPDX-License-Identifier: Apache-2.0
// A thread that waits for a row to come sends the one whose place it takes meanwhile. Both
// directions of the link are so in use to the same extent: a kernel that only writes fills its
// direction, requests for rows to come travel in that one too, and the other runs dry. On an H200
// 40 GB/s each way against 34 to 38 for two kernels on two streams.
#include <cuda_runtime.h>

#include <algorithm>

#include "exchange.hpp"
#include "grid.hpp"
#include "launching.hpp"
#include "row_kernels.cuh"

namespace gs::pinned {
namespace {

struct Pair {
  RowSide table, array;
  unsigned each;  // accesses of a row
};

struct Pairs {
  Pair pair[kMostSwaps];
  int n;
  std::int64_t n_loaded, n_free;
  const void *loaded, *stored, *slots;
};

// Accesses on their way per thread, each way.
template <class Vec>
constexpr int kExchangeUnroll = sizeof(Vec) >= 8 ? 2 : 3;

// Where this thread's accesses of a tile come from, what they replace and where that goes; and of
// each whether a row comes, and whether one goes.
template <class Vec, int kUnroll>
struct Swaps {
  const Vec* from[kUnroll];
  Vec *slot[kUnroll], *to[kUnroll];
  bool comes[kUnroll], goes[kUnroll];
};

template <class Id, class Vec, int kUnroll>
__device__ __forceinline__ Swaps<Vec, kUnroll> find_swaps(const Pairs& pairs, const Pair& pair,
                                                          const Walk<kUnroll>& walk, Fault* fault) {
  Swaps<Vec, kUnroll> found;
  Place places[kUnroll];
  walk.places(places);
  std::int64_t row[kUnroll];
  find_rows<Id>(pairs.slots, pair.array.rows, pairs.n_loaded, places, fault, row);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    found.comes[u] = row[u] >= 0;
    found.slot[u] =
        reinterpret_cast<Vec*>(pair.array.data + row[u] * pair.array.stride) + places[u].column;
  }
  find_rows<Id>(pairs.loaded, pair.table.rows, pairs.n_loaded, places, fault, row);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    found.comes[u] = found.comes[u] && row[u] >= 0;
    found.from[u] = reinterpret_cast<const Vec*>(pair.table.data + row[u] * pair.table.stride) +
                    places[u].column;
  }
  const std::int64_t n_stored = pairs.n_loaded - pairs.n_free;
  bool is_free[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    is_free[u] = places[u].i < pairs.n_free;
    places[u].i = is_free[u] ? n_stored : places[u].i - pairs.n_free;
  }
  find_rows<Id>(pairs.stored, pair.table.rows, n_stored, places, fault, row);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    // A row that has nowhere to go stays.
    found.comes[u] = found.comes[u] && (is_free[u] || row[u] >= 0);
    found.goes[u] = found.comes[u] && row[u] >= 0;
    found.to[u] =
        reinterpret_cast<Vec*>(pair.table.data + row[u] * pair.table.stride) + places[u].column;
  }
  return found;
}

template <class Vec, class Id>
__global__ void __launch_bounds__(kMostThreads)
    exchange_rows_kernel(const __grid_constant__ Pairs pairs, Fault* fault) {
  constexpr int kUnroll = kExchangeUnroll<Vec>;
  std::int64_t first_tile = blockIdx.x;
#pragma unroll 1
  for (int k = 0; k < pairs.n; ++k) {
    const Pair& pair = pairs.pair[k];
    for (Walk<kUnroll> walk(first_tile, pairs.n_loaded, pair.each); !walk.is_done();
         walk.advance()) {
      const auto swap = find_swaps<Id, Vec>(pairs, pair, walk, fault);
      Vec coming[kUnroll], leaving[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (swap.comes[u]) coming[u] = __ldcs(swap.from[u]);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (swap.goes[u]) leaving[u] = *swap.slot[u];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (swap.goes[u]) *swap.to[u] = leaving[u];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (swap.comes[u]) *swap.slot[u] = coming[u];
    }
    // The blocks that have least to do go on with the next table.
    const std::int64_t size = Walk<kUnroll>::tile_size();
    const std::int64_t tiles = (pairs.n_loaded * pair.each + size - 1) / size;
    first_tile = (first_tile + gridDim.x - tiles % gridDim.x) % gridDim.x;
  }
}

int width_of(const Swap& swap, const Exchanged& rows) {
  Width width;
  width.divides(swap.table);
  if (rows.table_rows > 1) width.divides(swap.table_stride);
  width.divides(swap.array);
  if (rows.array_rows > 1) width.divides(swap.array_stride);
  width.divides(swap.row_bytes);
  return width.bytes();
}

template <class Vec, class Id>
void launch_exchange(Pairs pairs, const std::vector<Swap>& swaps, std::size_t first,
                     const Exchanged& rows, const Launch& launch) {
  std::int64_t accesses = 0;
  for (int k = 0; k < pairs.n; ++k) {
    const Swap& swap = swaps[first + k];
    const std::int64_t each = swap.row_bytes / static_cast<std::int64_t>(sizeof(Vec));
    pairs.pair[k] = Pair{RowSide{swap.table, swap.table_stride, rows.table_rows, nullptr},
                         RowSide{swap.array, swap.array_stride, rows.array_rows, nullptr},
                         static_cast<unsigned>(each)};
    accesses += rows.n_loaded * each;
  }
  const Grid grid =
      grid_for(Traffic::kExchange, accesses, kExchangeUnroll<Vec>, sizeof(Vec), launch.max_blocks);
  exchange_rows_kernel<Vec, Id>
      <<<grid.blocks, grid.threads, 0, launch.stream.get()>>>(pairs, launch.fault);
}

template <class Id>
void launch_exchange(const Pairs& pairs, int width, const std::vector<Swap>& swaps,
                     std::size_t first, const Exchanged& rows, const Launch& launch) {
  switch (width) {
    case 16:
      return launch_exchange<uint4, Id>(pairs, swaps, first, rows, launch);
    case 8:
      return launch_exchange<uint2, Id>(pairs, swaps, first, rows, launch);
    case 4:
      return launch_exchange<unsigned, Id>(pairs, swaps, first, rows, launch);
    case 2:
      return launch_exchange<unsigned short, Id>(pairs, swaps, first, rows, launch);
    default:
      return launch_exchange<unsigned char, Id>(pairs, swaps, first, rows, launch);
  }
}

template <class Id, class... Vecs>
void load_exchanges() {
  (load(exchange_rows_kernel<Vecs, Id>), ...);
}

}  // namespace

void exchange_on_device(const std::vector<Swap>& swaps, const Exchanged& rows,
                        const Launch& launch) {
  if (rows.n_loaded == 0) return;
  cuda::DeviceGuard guard(launch.device);
  for (std::size_t first = 0; first < swaps.size();) {
    // Those that follow one another and take the same accesses.
    const int width = width_of(swaps[first], rows);
    std::size_t last = first + 1;
    while (last < swaps.size() && last - first < kMostSwaps && width_of(swaps[last], rows) == width)
      ++last;
    Pairs pairs{};
    pairs.n = static_cast<int>(last - first);
    pairs.n_loaded = rows.n_loaded;
    pairs.n_free = rows.n_loaded - rows.n_stored;
    pairs.loaded = rows.loaded.data;
    pairs.stored = rows.stored.data;
    pairs.slots = rows.slots.data;
    with_id_type(rows.loaded.wide, [&](auto id) {
      launch_exchange<decltype(id)>(pairs, width, swaps, first, rows, launch);
    });
    GS_CUDA_TRY(cudaGetLastError());
    first = last;
  }
}

void load_exchange_kernels() {
  load_exchanges<std::int32_t, uint4, uint2, unsigned, unsigned short, unsigned char>();
  load_exchanges<std::int64_t, uint4, uint2, unsigned, unsigned short, unsigned char>();
}

}  // namespace gs::pinned
