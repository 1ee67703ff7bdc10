// SPDX-License-Identifier: Apache-2.0
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <mutex>
#include <type_traits>
#include <vector>

#include "exchange.hpp"
#include "grid.hpp"
#include "gs/cuda/check.hpp"
#include "launching.hpp"
#include "row_kernels.cuh"
#include "stream_word.hpp"
#include "transfer_cuda.hpp"

namespace gs::pinned {
namespace {

RowCopy as_row_copy(const Transfer& t) {
  const Part& part = t.parts[0];
  const RowSide whole{t.whole + part.offset, t.whole_stride, t.whole_rows, t.whole_ids.data};
  const RowSide field{part.data, part.stride, t.parts_rows, t.parts_ids.data};
  return t.to_parts ? RowCopy{whole, field, t.n} : RowCopy{field, whole, t.n};
}

void add_widths(const Transfer& t, Width* width) {
  const Part& part = t.parts[0];
  width->divides(t.whole + part.offset);
  if (t.whole_rows > 1) width->divides(t.whole_stride);
  width->divides(part.data);
  if (t.parts_rows > 1) width->divides(part.stride);
  width->divides(part.bytes);
}

bool has_wide_ids(const Transfer& t) { return t.whole_ids.wide || t.parts_ids.wide; }

template <class Vec, class Id>
void launch_copies(const RowCopies& copies, std::int64_t row_bytes, Traffic traffic,
                   const Launch& launch) {
  const std::int64_t each = row_bytes / static_cast<std::int64_t>(sizeof(Vec));
  std::int64_t rows = 0;
  for (int k = 0; k < copies.n; ++k) rows += copies.each[k].n;
  const Grid grid = grid_for(traffic, rows * each, kUnrollOf<Vec>, sizeof(Vec), launch.max_blocks);
  copy_rows_kernel<Vec, Id><<<grid.blocks, grid.threads, 0, launch.stream.get()>>>(
      copies, static_cast<unsigned>(each), launch.fault);
}

template <class Id>
void launch_copies(const RowCopies& copies, std::int64_t row_bytes, int width, Traffic traffic,
                   const Launch& launch) {
  switch (width) {
    case 16:
      return launch_copies<uint4, Id>(copies, row_bytes, traffic, launch);
    case 8:
      return launch_copies<uint2, Id>(copies, row_bytes, traffic, launch);
    case 4:
      return launch_copies<unsigned, Id>(copies, row_bytes, traffic, launch);
    case 2:
      return launch_copies<unsigned short, Id>(copies, row_bytes, traffic, launch);
    default:
      return launch_copies<unsigned char, Id>(copies, row_bytes, traffic, launch);
  }
}

template <class Vec, class Piece, class Id>
void launch_split(const SplitRows& split, const Transfer& t, const Launch& launch) {
  constexpr int kUnroll = 4;
  const std::int64_t each = t.row_bytes / static_cast<std::int64_t>(sizeof(Vec));
  const Grid grid = grid_for(traffic_of(t, launch.over_link), split.n * each, kUnroll, sizeof(Vec),
                             launch.max_blocks);
  const cudaStream_t stream = launch.stream.get();
  if (t.to_parts)
    split_rows_kernel<Vec, Piece, Id><<<grid.blocks, grid.threads, 0, stream>>>(
        split, static_cast<unsigned>(each), launch.fault);
  else
    join_rows_kernel<Vec, Piece, Id><<<grid.blocks, grid.threads, 0, stream>>>(
        split, static_cast<unsigned>(each), launch.fault);
}

void split_on_device(const Transfer& t, const Launch& launch) {
  SplitRows split;
  split.whole = RowSide{t.whole, t.whole_stride, t.whole_rows, t.whole_ids.data};
  split.n_parts = t.n_parts;
  split.parts_rows = t.parts_rows;
  split.parts_ids = t.parts_ids.data;
  split.n = t.n;
  Width whole, piece;
  whole.divides(t.whole);
  whole.divides(t.whole_stride);
  whole.divides(t.row_bytes);
  for (int k = 0; k < t.n_parts; ++k) {
    const Part& part = t.parts[k];
    split.parts[k] = Field{part.data, part.stride, static_cast<unsigned>(part.offset),
                           static_cast<unsigned>(part.bytes)};
    piece.divides(part.data);
    piece.divides(part.stride);
    piece.divides(part.offset);
    piece.divides(part.bytes);
  }
  const int narrow = std::min(whole.bytes(), piece.bytes());
  with_id_type(has_wide_ids(t), [&](auto id) {
    using Id = decltype(id);
    if (whole.bytes() == 16 && narrow >= 4)
      launch_split<uint4, unsigned, Id>(split, t, launch);
    else if (narrow >= 4)
      launch_split<unsigned, unsigned, Id>(split, t, launch);
    else if (narrow == 2)
      launch_split<unsigned short, unsigned short, Id>(split, t, launch);
    else
      launch_split<unsigned char, unsigned char, Id>(split, t, launch);
  });
}

template <class T, class Id>
void launch_add(const RowCopy& copy, std::int64_t row_bytes, int width, const Launch& launch) {
  const cudaStream_t stream = launch.stream.get();
  const auto go = [&](auto lanes) {
    constexpr int kLanes = decltype(lanes)::value;
    const std::int64_t each = row_bytes / static_cast<std::int64_t>(sizeof(T) * kLanes);
    const Grid grid =
        grid_for(Traffic::kOther, copy.n * each, 4, sizeof(T) * kLanes, launch.max_blocks);
    add_rows_kernel<T, kLanes, Id>
        <<<grid.blocks, grid.threads, 0, stream>>>(copy, static_cast<unsigned>(each), launch.fault);
  };
  if (width == 16)
    go(std::integral_constant<int, 16 / sizeof(T)>{});
  else
    go(std::integral_constant<int, 1>{});
}

// One launch per field: the sum is taken element by element anyway.
void add_on_device(const Transfer& t, const Launch& launch) {
  for (int k = 0; k < t.n_parts; ++k) {
    Transfer one = t;
    one.parts[0] = t.parts[k];
    one.n_parts = 1;
    const RowCopy copy = as_row_copy(one);
    Width width;
    add_widths(one, &width);
    const std::int64_t bytes = one.parts[0].bytes;
    with_id_type(has_wide_ids(t), [&](auto id) {
      using Id = decltype(id);
      switch (t.element) {
        case Element::kFloat32:
          return launch_add<float, Id>(copy, bytes, width.bytes(), launch);
        case Element::kFloat16:
          return launch_add<__half, Id>(copy, bytes, width.bytes(), launch);
        case Element::kUint8:
          return launch_add<std::uint8_t, Id>(copy, bytes, width.bytes(), launch);
        case Element::kInt32:
          return launch_add<std::uint32_t, Id>(copy, bytes, width.bytes(), launch);
        case Element::kInt64:
          return launch_add<unsigned long long, Id>(copy, bytes, width.bytes(), launch);
      }
    });
    GS_CUDA_TRY(cudaGetLastError());
  }
}

}  // namespace

void transfer_on_device(const Transfer& t, const Launch& launch) {
  if (t.n == 0 || t.n_parts == 0) return;
  if (!t.add && t.n_parts == 1) return transfer_together_on_device({t}, launch);
  cuda::DeviceGuard guard(launch.device);
  if (t.add) return add_on_device(t, launch);
  split_on_device(t, launch);
  GS_CUDA_TRY(cudaGetLastError());
}

void transfer_together_on_device(const std::vector<Transfer>& transfers, const Launch& launch) {
  RowCopies copies{};
  Width width;
  bool has_rows = false, is_wide = false;
  for (const Transfer& t : transfers) {
    copies.each[copies.n++] = as_row_copy(t);
    add_widths(t, &width);
    has_rows = has_rows || t.n > 0;
    is_wide = is_wide || (t.n > 0 && has_wide_ids(t));  // an empty list may have another width
  }
  if (!has_rows) return;
  cuda::DeviceGuard guard(launch.device);
  with_id_type(is_wide, [&](auto id) {
    launch_copies<decltype(id)>(copies, transfers[0].parts[0].bytes, width.bytes(),
                                traffic_of(transfers[0], launch.over_link), launch);
  });
  GS_CUDA_TRY(cudaGetLastError());
}

bool is_dense_copy(const Transfer& t) {
  const Part& part = t.parts[0];
  return !t.add && t.n_parts == 1 && t.whole_ids.data == nullptr && t.parts_ids.data == nullptr &&
         part.bytes == t.row_bytes &&
         (t.n <= 1 || (part.stride == part.bytes && t.whole_stride == t.row_bytes));
}

void copy_dense(const Transfer& t, const std::vector<std::size_t>& cuts, const Launch& launch) {
  cuda::DeviceGuard guard(launch.device);
  const cudaStream_t stream = launch.stream.get();
  const auto total = static_cast<std::size_t>(t.n * t.row_bytes);
  const auto copy = [&](std::size_t begin, std::size_t end) {
    char* whole = t.whole + begin;
    char* part = t.parts[0].data + begin;
    if (begin < end)
      GS_CUDA_TRY(cudaMemcpyAsync(t.to_parts ? part : whole, t.to_parts ? whole : part, end - begin,
                                  cudaMemcpyDefault, stream));
  };
  std::size_t begin = 0;
  for (const std::size_t cut : cuts) {
    const std::size_t end = std::min(cut, total);
    if (end <= begin) continue;
    copy(begin, end);
    begin = end;
  }
  copy(begin, total);
}

namespace {

template <class Id, class... Vecs>
void load_copies() {
  (load(copy_rows_kernel<Vecs, Id>), ...);
}

template <class Id, class... Pieces>
void load_splits() {
  load(split_rows_kernel<uint4, unsigned, Id>);
  load(join_rows_kernel<uint4, unsigned, Id>);
  (load(split_rows_kernel<Pieces, Pieces, Id>), ...);
  (load(join_rows_kernel<Pieces, Pieces, Id>), ...);
}

template <class Id, class... Elements>
void load_sums() {
  (load(add_rows_kernel<Elements, 1, Id>), ...);
  (load(add_rows_kernel<Elements, 16 / sizeof(Elements), Id>), ...);
}

template <class Id>
void load_all() {
  load_copies<Id, uint4, uint2, unsigned, unsigned short, unsigned char>();
  load_splits<Id, unsigned, unsigned short, unsigned char>();
  load_sums<Id, float, __half, std::uint8_t, std::uint32_t, unsigned long long>();
}

}  // namespace

void load_kernels(int device) {
  static std::mutex mutex;
  static std::vector<int> loaded;
  std::lock_guard<std::mutex> guard(mutex);
  if (std::find(loaded.begin(), loaded.end(), device) != loaded.end()) return;
  cuda::DeviceGuard on(device);
  load_all<std::int32_t>();
  load_all<std::int64_t>();
  load_exchange_kernels();
  load_word_kernels();
  loaded.push_back(device);
}

bool is_device_visible(const void* host, int device) {
  cuda::DeviceGuard guard(device);
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, host) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeHost && attributes.devicePointer == host;
}

}  // namespace gs::pinned
