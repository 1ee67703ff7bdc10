// SPDX-License-Identifier: Apache-2.0
// Blocks of rows on host threads: order, bounds, and which views may see them.
#pragma once

#include <vector>

#include "block_test.hpp"
#include "morton.hpp"

namespace gs {
class ThreadPool;
}

namespace gs::cull {

/// Which rows a block holds: those at positions [block * size, (block + 1) * size) below n_rows.
struct Blocking {
  std::int64_t n_rows;
  std::int32_t size;
  const std::int32_t* order;  // (n_rows,) row at each position; null: position = row
};

/// order: (n,) the rows along the curve, equal codes in the order of rows. Allocates 24 bytes a row
/// meanwhile.
void morton_order(ThreadPool& pool, const float* means, std::int64_t n, const MortonCube& cube,
                  std::int32_t* order);

/// Bounds of blocks[0..n), written to their places in `out`. stored: (n,) where each block starts
/// in the arrays, in blocks; unused with Blocking::order.
void fit_blocks(ThreadPool& pool, const Geometry& geometry, const Blocking& blocking,
                const std::int32_t* blocks, const std::int32_t* stored, std::int64_t n,
                const Options& options, const BoundsArrays& out);

/// words: (n_blocks, ceil(B / 32)) bit per view that may see the block.
void views_of_blocks(ThreadPool& pool, const BoundsArrays& bounds, std::int64_t n_blocks,
                     const std::vector<Camera>& cameras, const Options& options,
                     std::uint32_t* words);

}  // namespace gs::cull
