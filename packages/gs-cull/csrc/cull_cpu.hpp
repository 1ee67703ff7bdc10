// SPDX-License-Identifier: Apache-2.0
// Culling on host threads.
#pragma once

#include <cstdint>
#include <vector>

#include "row_test.hpp"

namespace gs {
class ThreadPool;
}

namespace gs::cull {

/// Consecutive rows that share what is known about them.
struct Run {
  const std::int32_t* rows;  // (n,) which rows; first_row, first_row + 1, ... when null
  std::int64_t first_row;    // where the run starts in the arrays, without `rows`
  std::int64_t first_id;     // id of the first row, without `rows`; else ids are `rows`
  std::int32_t n;
  const std::uint32_t* views;  // bit per view to look at; all when null
};

/// Some runs' visible rows, in the order of the runs.
struct Piece {
  std::vector<std::int32_t> ids;
  std::vector<std::uint32_t> mask;   // (U, words)
  std::vector<std::int64_t> counts;  // (B,)
  std::int64_t n_not_finite = 0;
};

/// Every visible row of every run. One piece per about 16384 rows, in order.
/// Blocks until done; uses the pool's threads. Throws std::bad_alloc.
std::vector<Piece> cull_runs(ThreadPool& pool, const Geometry& geometry,
                             const std::vector<Run>& runs, const std::vector<Camera>& cameras,
                             const Options& options);

/// Visible rows of all pieces.
std::int64_t total_visible(const std::vector<Piece>& pieces);

/// Joins pieces into sorted ids (U,), mask (U, words) and counts (B,); returns the number of rows
/// that are not finite. `sorted` says that the runs were in order of their ids; else `n_rows`
/// bounds the ids, and a bitmap of them is built.
std::int64_t join_pieces(ThreadPool& pool, const std::vector<Piece>& pieces, bool sorted,
                         std::int64_t n_rows, int n_views, std::int32_t* ids, std::uint32_t* mask,
                         std::int32_t* counts);

/// marks: (n,) whether row ids[i] shows in one of the views whose bits are set in row i of mask
/// (n, words): for each row and view the decision of cull_runs(). No bit may be set beyond the last
/// view. Blocks until done; uses the pool's threads.
void mark_rows(ThreadPool& pool, const Geometry& geometry, const std::int32_t* ids,
               const std::uint32_t* mask, std::int64_t n, const std::vector<Camera>& cameras,
               const Options& options, bool* marks);

/// boxes: (n, 4) x0 y0 x1 y1 in pixels of the rows ids[0..n) in one view, grown by the rounding
/// band; x0 = inf, x1 = -inf for a row without a box.
void box_rows(ThreadPool& pool, const Geometry& geometry, const std::int32_t* ids, std::int64_t n,
              const Camera& camera, const Options& options, float* boxes);

}  // namespace gs::cull
