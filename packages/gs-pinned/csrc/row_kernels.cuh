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
#include "transfer_cuda.hpp"

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

struct RowCopies {
  RowCopy each[kMostTogether];
  int n;
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

// Access number `column` of row `i`.
struct Place {
  std::int64_t i;
  unsigned column;

  Place() = default;
  __device__ Place(std::int64_t access, unsigned each)
      : i(access / each), column(static_cast<unsigned>(access - i * each)) {}
  // Onward by as much as another place lies from the first access.
  __device__ void advance(const Place& by, unsigned each) {
    i += by.i;
    column += by.column;
    if (column >= each) {
      column -= each;
      ++i;
    }
  }
};

// What one thread visits: kUnroll accesses of each of its block's tiles. Divisions happen here,
// once: one block's threads are too few to hide them in every tile.
template <int kUnroll>
struct Walk {
  std::int64_t n;  // rows
  unsigned each;
  Place start, next_access, next_tile;

  __device__ Walk(std::int64_t first_tile, std::int64_t n, unsigned each)
      : n(n),
        each(each),
        start(first_tile * tile_size() + threadIdx.x, each),
        next_access(blockDim.x, each),
        next_tile(gridDim.x * tile_size(), each) {}
  __device__ static std::int64_t tile_size() { return std::int64_t{blockDim.x} * kUnroll; }
  __device__ bool is_done() const { return start.i >= n; }
  __device__ void advance() { start.advance(next_tile, each); }
  __device__ __forceinline__ void places(Place (&all)[kUnroll]) const {
    all[0] = start;
#pragma unroll
    for (int u = 1; u < kUnroll; ++u) {
      all[u] = all[u - 1];
      all[u].advance(next_access, each);
    }
  }
};

// The rows behind ids[place.i]: -1 past the end and, with a record of it unless `fault` is null,
// for an id out of range. All ids are on their way before the first is looked at.
template <class Id, int kUnroll>
__device__ __forceinline__ void find_rows(const void* ids, std::int64_t rows, std::int64_t n,
                                          const Place (&places)[kUnroll], Fault* fault,
                                          std::int64_t (&row)[kUnroll]) {
  if (ids == nullptr) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) row[u] = places[u].i;
  } else {
    Id id[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      id[u] = places[u].i < n ? static_cast<const Id*>(ids)[places[u].i] : Id{0};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) row[u] = id[u];
  }
  bool is_bad = false;
  std::int64_t bad = 0;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    // Negative numbers are large ones here.
    if (static_cast<std::uint64_t>(row[u]) < static_cast<std::uint64_t>(rows) && places[u].i < n)
      continue;
    if (places[u].i < n) {
      is_bad = true;
      bad = row[u];
    }
    row[u] = -1;
  }
  if (!is_bad || fault == nullptr) return;
  fault->id = bad;
  fault->rows = rows;
  __threadfence_system();
  fault->met = 1;
}

// What one thread does in a tile. Where an access is not to be made its pointers mean nothing. A
// flag says so, not a null pointer: of a 64-bit zero written under a predicate, ptxas 13.0 for
// sm_90 lets the old value be read, and then address 0.
template <class Access, int kUnroll>
struct Accesses {
  const Access* from[kUnroll];
  Access* to[kUnroll];
  bool is_there[kUnroll];
};

template <class Id, class Access, int kUnroll>
__device__ __forceinline__ Accesses<Access, kUnroll> find_accesses(const RowCopy& copy,
                                                                   const Walk<kUnroll>& walk,
                                                                   Fault* fault) {
  Place places[kUnroll];
  walk.places(places);
  std::int64_t source[kUnroll], target[kUnroll];
  find_rows<Id>(copy.from.ids, copy.from.rows, copy.n, places, fault, source);
  find_rows<Id>(copy.to.ids, copy.to.rows, copy.n, places, fault, target);
  Accesses<Access, kUnroll> found;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    found.is_there[u] = source[u] >= 0 && target[u] >= 0;
    found.from[u] = reinterpret_cast<const Access*>(copy.from.data + source[u] * copy.from.stride) +
                    places[u].column;
    found.to[u] =
        reinterpret_cast<Access*>(copy.to.data + target[u] * copy.to.stride) + places[u].column;
  }
  return found;
}

// Rows of `each` accesses, first all of one copy, then all of the next.
template <class Vec, class Id>
__global__ void __launch_bounds__(kMostThreads)
    copy_rows_kernel(const __grid_constant__ RowCopies copies, unsigned each, Fault* fault) {
  constexpr int kUnroll = kUnrollOf<Vec>;
  std::int64_t first_tile = blockIdx.x;
#pragma unroll 1
  for (int k = 0; k < copies.n; ++k) {
    const RowCopy& copy = copies.each[k];
    if (copy.n == 0) continue;
    for (Walk<kUnroll> walk(first_tile, copy.n, each); !walk.is_done(); walk.advance()) {
      const auto access = find_accesses<Id, Vec>(copy, walk, fault);
      Vec value[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (access.is_there[u]) value[u] = __ldcs(access.from[u]);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (access.is_there[u]) *access.to[u] = value[u];
    }
    // The blocks that have least to do go on with the next copy.
    const std::int64_t size = Walk<kUnroll>::tile_size(), tiles = (copy.n * each + size - 1) / size;
    first_tile = (blockIdx.x + gridDim.x - tiles % gridDim.x) % gridDim.x;
  }
}

// Bytes of a row that lie together in one of the fields, or, without data, in none of them.
struct Span {
  char* data;
  unsigned left;
};

// From byte `offset` of row `row` on; in no field at least `piece` bytes.
__device__ inline Span locate(const SplitRows& split, unsigned offset, std::int64_t row,
                              unsigned piece) {
  for (int k = 0; k < split.n_parts; ++k) {
    const Field& part = split.parts[k];
    const unsigned inside = offset - part.offset;  // wraps around before the field's start
    if (inside < part.bytes)
      return Span{part.data + row * part.stride + inside, part.bytes - inside};
  }
  return Span{nullptr, piece};
}

// Calls use(k, address) for each piece of the access at byte `offset` of a row that is in a field.
template <int kPieces, unsigned kNarrow, class Use>
__device__ __forceinline__ void for_pieces(const SplitRows& split, unsigned offset,
                                           std::int64_t row, Use&& use) {
  Span span{nullptr, 0};
#pragma unroll
  for (int k = 0; k < kPieces; ++k) {
    if (span.left == 0) span = locate(split, offset + k * kNarrow, row, kNarrow);
    if (span.data != nullptr) {
      use(k, span.data);
      span.data += kNarrow;
    }
    span.left -= kNarrow;
  }
}

// Whole rows are read in accesses of one width, fields written in pieces of another.
template <class Vec, class Piece, class Id>
__global__ void __launch_bounds__(kMostThreads)
    split_rows_kernel(const __grid_constant__ SplitRows split, unsigned each, Fault* fault) {
  constexpr int kUnroll = 4, kPieces = sizeof(Vec) / sizeof(Piece);
  constexpr unsigned kWide = sizeof(Vec), kNarrow = sizeof(Piece);
  for (Walk<kUnroll> walk(blockIdx.x, split.n, each); !walk.is_done(); walk.advance()) {
    Place places[kUnroll];
    walk.places(places);
    std::int64_t source[kUnroll], row[kUnroll];
    find_rows<Id>(split.whole.ids, split.whole.rows, split.n, places, fault, source);
    find_rows<Id>(split.parts_ids, split.parts_rows, split.n, places, fault, row);
    union {
      Vec all;
      Piece pieces[kPieces];
    } value[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (source[u] >= 0 && row[u] >= 0)
        value[u].all =
            __ldcs(reinterpret_cast<const Vec*>(split.whole.data + source[u] * split.whole.stride) +
                   places[u].column);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (source[u] >= 0 && row[u] >= 0)
        for_pieces<kPieces, kNarrow>(split, places[u].column * kWide, row[u], [&](int k, char* to) {
          *reinterpret_cast<Piece*>(to) = value[u].pieces[k];
        });
  }
}

// The other way: fields are read in pieces, whole rows written in as wide accesses as can be.
template <class Vec, class Piece, class Id>
__global__ void __launch_bounds__(kMostThreads)
    join_rows_kernel(const __grid_constant__ SplitRows split, unsigned each, Fault* fault) {
  constexpr int kUnroll = 4, kPieces = sizeof(Vec) / sizeof(Piece);
  constexpr unsigned kWide = sizeof(Vec), kNarrow = sizeof(Piece);
  constexpr unsigned kAll = (1u << kPieces) - 1;
  for (Walk<kUnroll> walk(blockIdx.x, split.n, each); !walk.is_done(); walk.advance()) {
    Place places[kUnroll];
    walk.places(places);
    std::int64_t target[kUnroll], row[kUnroll];
    find_rows<Id>(split.whole.ids, split.whole.rows, split.n, places, fault, target);
    find_rows<Id>(split.parts_ids, split.parts_rows, split.n, places, fault, row);
    union {
      Vec all;
      Piece pieces[kPieces];
    } value[kUnroll];
    unsigned present[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      present[u] = 0;
      if (target[u] >= 0 && row[u] >= 0)
        for_pieces<kPieces, kNarrow>(
            split, places[u].column * kWide, row[u], [&](int k, const char* from) {
              value[u].pieces[k] = __ldcs(reinterpret_cast<const Piece*>(from));
              present[u] |= 1u << k;
            });
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      Vec* to = reinterpret_cast<Vec*>(split.whole.data + target[u] * split.whole.stride) +
                places[u].column;
      if (present[u] == kAll) {
        *to = value[u].all;
      } else {
#pragma unroll
        for (int k = 0; k < kPieces; ++k)
          if ((present[u] >> k & 1u) != 0) reinterpret_cast<Piece*>(to)[k] = value[u].pieces[k];
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
  for (Walk<kUnroll> walk(blockIdx.x, copy.n, each); !walk.is_done(); walk.advance()) {
    const auto access = find_accesses<Id, Pack>(copy, walk, fault);
    Pack term[kUnroll], sum[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (access.is_there[u]) sum[u] = *access.to[u];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (access.is_there[u]) term[u] = *access.from[u];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (!access.is_there[u]) continue;
#pragma unroll
      for (int k = 0; k < kLanes; ++k)
        sum[u].lane[k] = static_cast<T>(sum[u].lane[k] + term[u].lane[k]);
      *access.to[u] = sum[u];
    }
  }
}

}  // namespace
}  // namespace gs::pinned
