// SPDX-License-Identifier: Apache-2.0
// Blocks of rows on a CUDA device; the same functions as blocks_cpu.hpp.
//
// Every function here enqueues on `stream` of the current device, does not synchronise, allocates
// nothing and throws gs::CudaError. Pointers are device memory.
#pragma once

#include "block_test.hpp"
#include "blocks_cpu.hpp"
#include "gs/cuda/stream_view.hpp"

namespace gs::cull {

/// codes: (n,).
void morton_codes(const float* means, std::int64_t n, const MortonCube& cube, std::uint64_t* codes,
                  std::int32_t* rows, cuda::StreamView stream);

/// Bytes of `workspace` of sort_rows().
std::size_t sort_workspace_bytes(std::int64_t n);

/// Sorts rows by their codes, stably. codes, rows: (2, n), the first half filled; both halves are
/// overwritten. Returns the half that holds the sorted rows.
int sort_rows(std::uint64_t* codes, std::int32_t* rows, std::int64_t n, void* workspace,
              std::size_t workspace_bytes, cuda::StreamView stream);

/// As the host's fit_blocks(), with blocks and stored on the device.
void fit_blocks(const Geometry& geometry, const Blocking& blocking, const std::int32_t* blocks,
                const std::int32_t* stored, std::int64_t n, const Options& options,
                const BoundsArrays& out, cuda::StreamView stream);

/// As the host's views_of_blocks(). Adds to *n_not_finite the rows that are not finite of all
/// blocks, or of those with a slot: slot_of_block is (n_blocks,), -1 without one, or null.
void views_of_blocks(const BoundsArrays& bounds, std::int64_t n_blocks, const Camera* cameras,
                     int n_views, const Options& options, const std::int32_t* slot_of_block,
                     std::uint32_t* words, std::int32_t* n_not_finite, cuda::StreamView stream);

}  // namespace gs::cull
