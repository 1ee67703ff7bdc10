// SPDX-License-Identifier: Apache-2.0
// Culling on a CUDA device, in two steps with one look from the host in between: mark_visible()
// finds the union of all views and its size, write_ids() and write_mask() fill arrays of that size.
//
// Every function here enqueues on `stream` of the current device, does not synchronise, allocates
// nothing and throws gs::CudaError. Pointers are device memory that must stay until the stream has
// passed the call.
#pragma once

#include <cstdint>

#include "gs/cuda/stream_view.hpp"
#include "row_test.hpp"

namespace gs::cull {

/// Which rows there are, and which of their blocks need looking at.
struct Layout {
  std::int64_t n_rows;                // ids lie in [0, n_rows)
  std::int32_t block_size;            // multiple of 32
  std::int64_t n_resident;            // blocks present in the arrays
  const std::int32_t* order;          // (n_rows,) the row at each position; null: position = row
  const std::int32_t* block_in_slot;  // (n_resident,) -1: empty; null: block k is the k-th
  const std::int32_t* slot_of_block;  // (blocks,) the inverse of it; null with it
  const std::uint32_t* block_views;   // (blocks, words) views to look at; null: all
};

/// What the host reads after mark_visible().
struct Totals {
  std::int32_t n_visible;
  std::int32_t n_not_finite;
  std::int32_t fault;  // CameraFault
  std::int32_t fault_view;
};

/// Camera of every view. viewmats: (B, 4, 4). Ks: (B, 3, 3). sizes: (B, 6) width, height and
/// rectangle, on the host and read before this returns. totals: faults are noted there; zeroed by
/// the caller.
void prepare_cameras(const float* viewmats, const float* Ks, const float* sizes, int n_views,
                     const Options& options, Camera* cameras, Totals* totals,
                     cuda::StreamView stream);

/// bits: (ceil(n_rows / 32),) zeroed; the bit of every row that shows in a view is set. Rows that
/// are not finite are counted unless the layout names views, as then not all rows are looked at.
/// chunk_offsets: (visible_chunks(n_rows),) ids before each chunk of bits. ticket: one zero.
void mark_visible(const Geometry& geometry, const Layout& layout, const Camera* cameras,
                  int n_views, const Options& options, std::uint32_t* bits,
                  std::int32_t* chunk_offsets, std::uint32_t* ticket, Totals* totals,
                  cuda::StreamView stream);

/// Entries of chunk_offsets.
std::int64_t visible_chunks(std::int64_t n_rows);

/// ids: (U,) sorted. With one view, mask (U, 1) and counts (1,) are filled as well; else both are
/// null.
void write_ids(const std::uint32_t* bits, const std::int32_t* chunk_offsets, std::int64_t n_rows,
               std::int64_t n_visible, std::int32_t* ids, std::uint32_t* mask, std::int32_t* counts,
               cuda::StreamView stream);

/// mask: (U, words) of the rows ids[0..U). counts: (B,) zeroed.
void write_mask(const Geometry& geometry, const Layout& layout, const Camera* cameras, int n_views,
                const Options& options, const std::int32_t* ids, std::int64_t n_visible,
                std::uint32_t* mask, std::int32_t* counts, cuda::StreamView stream);

/// As cull::box_rows() of cull_cpu.hpp.
void box_rows(const Geometry& geometry, const std::int32_t* ids, std::int64_t n,
              const Camera* camera, const Options& options, float* boxes, cuda::StreamView stream);

}  // namespace gs::cull
