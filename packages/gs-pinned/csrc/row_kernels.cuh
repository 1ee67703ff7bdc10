// SPDX-License-Identifier: Apache-2.0
// Kernels that move rows between host and device memory.
//
// Each walks one flat run of accesses, rows one after the other, tile by tile across all blocks:
// at any moment the few blocks that the link needs work next to each other, so that sorted ids
// touch few pages at a time. A thread has several loads in flight before its first store, because
// a read over the link takes microseconds. Any number of threads in a block does; launches choose.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "fault.hpp"
#include "transfer.hpp"

namespace gs::pinned {
namespace {

// In a block. Sums keep more per thread.
constexpr int kMostThreads = 1024, kSumThreads = 384;

struct RowSide {
  char* data;           // (rows, ...) with row stride `stride`
  std::int64_t stride;  // bytes
  std::int64_t rows;
  const void* ids;  // (n,) in device memory, or null: row i itself
};

struct RowCopy {
  RowSide from, to;
  std::int64_t n;
};

// A Part in 32 bits where a row allows it: which field a byte belongs to is asked for every piece.
struct Field {
  char* data;
  std::int64_t stride;  // bytes
  unsigned offset, bytes;
};

struct SplitRows {
  RowSide whole;
  Field parts[kMaxParts];
  int n_parts;
  std::int64_t parts_rows;
  const void* parts_ids;  // (n,) or null
  std::int64_t n;
};

// Accesses in flight per thread.
template <class Vec>
constexpr int kUnrollOf = sizeof(Vec) >= 8 ? 4 : 8;

// The row behind id number i; -1, and a record of it, when it is out of range.
template <class Id>
__device__ std::int64_t row_behind(const void* ids, std::int64_t i, std::int64_t rows,
                                   Fault* fault) {
  const std::int64_t row = ids == nullptr ? i : static_cast<const Id*>(ids)[i];
  if (row >= 0 && row < rows) return row;
  fault->id = row;
  fault->rows = rows;
  __threadfence_system();
  fault->met = 1;
  return -1;
}

// Where access number `index` after (row, column) lies in rows of `each` accesses.
struct Place {
  std::int64_t i;
  unsigned column;
};

struct Tile {
  std::int64_t row;
  unsigned column;

  __device__ Tile(std::int64_t first, unsigned each)
      : row(first / each), column(static_cast<unsigned>(first - row * each)) {}
  __device__ Place at(unsigned index, unsigned each) const {
    const unsigned local = column + index;
    return Place{row + local / each, local % each};
  }
};

__device__ inline std::int64_t n_tiles(std::int64_t accesses, std::int64_t tile) {
  return (accesses + tile - 1) / tile;
}

// Where this thread's accesses of a tile read and write; null where there is nothing to do.
template <class Id, class Access, int kUnroll>
__device__ __forceinline__ void find_accesses(const RowCopy& copy, const Tile& tile, unsigned each,
                                              Fault* fault, const Access* (&from)[kUnroll],
                                              Access* (&to)[kUnroll]) {
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const Place place = tile.at(u * blockDim.x + threadIdx.x, each);
    from[u] = nullptr;
    if (place.i >= copy.n) continue;
    const std::int64_t source = row_behind<Id>(copy.from.ids, place.i, copy.from.rows, fault);
    const std::int64_t target = row_behind<Id>(copy.to.ids, place.i, copy.to.rows, fault);
    if (source < 0 || target < 0) continue;
    from[u] =
        reinterpret_cast<const Access*>(copy.from.data + source * copy.from.stride) + place.column;
    to[u] = reinterpret_cast<Access*>(copy.to.data + target * copy.to.stride) + place.column;
  }
}

// Rows of `each` accesses, first all of one copy, then all of another.
template <class Vec, class Id>
__global__ void __launch_bounds__(kMostThreads)
    copy_rows_kernel(const __grid_constant__ RowCopy first, const __grid_constant__ RowCopy second,
                     unsigned each, Fault* fault) {
  constexpr int kUnroll = kUnrollOf<Vec>;
  const std::int64_t size = std::int64_t{blockDim.x} * kUnroll;
  const std::int64_t first_tiles = n_tiles(first.n * each, size);
  const std::int64_t tiles = first_tiles + n_tiles(second.n * each, size);
  for (std::int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    const bool is_first = number < first_tiles;
    const RowCopy& copy = is_first ? first : second;
    const Tile tile((is_first ? number : number - first_tiles) * size, each);
    const Vec* from[kUnroll];
    Vec* to[kUnroll];
    find_accesses<Id>(copy, tile, each, fault, from, to);
    Vec value[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (from[u] != nullptr) value[u] = __ldcs(from[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (from[u] != nullptr) *to[u] = value[u];
  }
}

// Where byte `offset` of row `row` lies among the fields; null when it is in none of them.
__device__ inline char* locate(const SplitRows& split, unsigned offset, std::int64_t row) {
  for (int k = 0; k < split.n_parts; ++k) {
    const Field& part = split.parts[k];
    const unsigned inside = offset - part.offset;  // wraps around before the field's start
    if (inside < part.bytes) return part.data + row * part.stride + inside;
  }
  return nullptr;
}

// Whole rows are read in accesses of one width, fields written in pieces of another.
template <class Vec, class Piece, class Id>
__global__ void __launch_bounds__(kMostThreads)
    split_rows_kernel(const __grid_constant__ SplitRows split, unsigned each, Fault* fault) {
  constexpr int kUnroll = 4, kPieces = sizeof(Vec) / sizeof(Piece);
  constexpr unsigned kWide = sizeof(Vec), kNarrow = sizeof(Piece);
  const std::int64_t size = std::int64_t{blockDim.x} * kUnroll;
  const std::int64_t tiles = n_tiles(split.n * each, size);
  for (std::int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    const Tile tile(number * size, each);
    const Vec* from[kUnroll];
    std::int64_t row[kUnroll];
    unsigned column[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const Place place = tile.at(u * blockDim.x + threadIdx.x, each);
      from[u] = nullptr;
      column[u] = place.column;
      if (place.i < split.n) {
        const std::int64_t source =
            row_behind<Id>(split.whole.ids, place.i, split.whole.rows, fault);
        row[u] = row_behind<Id>(split.parts_ids, place.i, split.parts_rows, fault);
        if (source >= 0 && row[u] >= 0)
          from[u] = reinterpret_cast<const Vec*>(split.whole.data + source * split.whole.stride) +
                    place.column;
      }
    }
    union {
      Vec all;
      Piece pieces[kPieces];
    } value[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (from[u] != nullptr) value[u].all = __ldcs(from[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (from[u] == nullptr) continue;
#pragma unroll
      for (int k = 0; k < kPieces; ++k) {
        char* to = locate(split, column[u] * kWide + k * kNarrow, row[u]);
        if (to != nullptr) *reinterpret_cast<Piece*>(to) = value[u].pieces[k];
      }
    }
  }
}

// The other way: fields are read in pieces, whole rows written in as wide accesses as can be.
template <class Vec, class Piece, class Id>
__global__ void __launch_bounds__(kMostThreads)
    join_rows_kernel(const __grid_constant__ SplitRows split, unsigned each, Fault* fault) {
  constexpr int kUnroll = 4, kPieces = sizeof(Vec) / sizeof(Piece);
  constexpr unsigned kWide = sizeof(Vec), kNarrow = sizeof(Piece);
  const std::int64_t size = std::int64_t{blockDim.x} * kUnroll;
  constexpr unsigned kAll = (1u << kPieces) - 1;
  const std::int64_t tiles = n_tiles(split.n * each, size);
  for (std::int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    const Tile tile(number * size, each);
    union {
      Vec all;
      Piece pieces[kPieces];
    } value[kUnroll];
    Vec* to[kUnroll];
    unsigned present[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const Place place = tile.at(u * blockDim.x + threadIdx.x, each);
      present[u] = 0;
      if (place.i >= split.n) continue;
      const std::int64_t target = row_behind<Id>(split.whole.ids, place.i, split.whole.rows, fault);
      const std::int64_t row = row_behind<Id>(split.parts_ids, place.i, split.parts_rows, fault);
      if (target < 0 || row < 0) continue;
      to[u] = reinterpret_cast<Vec*>(split.whole.data + target * split.whole.stride) + place.column;
#pragma unroll
      for (int k = 0; k < kPieces; ++k) {
        const char* from = locate(split, place.column * kWide + k * kNarrow, row);
        if (from == nullptr) continue;
        value[u].pieces[k] = __ldcs(reinterpret_cast<const Piece*>(from));
        present[u] |= 1u << k;
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (present[u] == kAll) {
        *to[u] = value[u].all;
      } else {
#pragma unroll
        for (int k = 0; k < kPieces; ++k)
          if ((present[u] >> k & 1u) != 0) reinterpret_cast<Piece*>(to[u])[k] = value[u].pieces[k];
      }
    }
  }
}

// Read, add, write: rows are distinct, so no two threads meet.
template <class T, int kLanes, class Id>
__global__ void __launch_bounds__(kSumThreads)
    add_rows_kernel(RowCopy copy, unsigned each, Fault* fault) {
  struct alignas(sizeof(T) * kLanes) Pack {
    T lane[kLanes];
  };
  constexpr int kUnroll = 4;
  const std::int64_t size = std::int64_t{blockDim.x} * kUnroll;
  const std::int64_t tiles = n_tiles(copy.n * each, size);
  for (std::int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    const Tile tile(number * size, each);
    const Pack* from[kUnroll];
    Pack* to[kUnroll];
    find_accesses<Id>(copy, tile, each, fault, from, to);
    Pack term[kUnroll], sum[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (from[u] != nullptr) sum[u] = *to[u];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (from[u] != nullptr) term[u] = *from[u];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (from[u] == nullptr) continue;
#pragma unroll
      for (int k = 0; k < kLanes; ++k)
        sum[u].lane[k] = static_cast<T>(sum[u].lane[k] + term[u].lane[k]);
      *to[u] = sum[u];
    }
  }
}

}  // namespace
}  // namespace gs::pinned
