// SPDX-License-Identifier: Apache-2.0
// Which rows have a gradient, and where it lies: a few bits a row, so that every thread may look up
// its own in the second-level cache.
#pragma once

#include <cstdint>

namespace gs::adam {
namespace {

constexpr int kWordShift = 5;
constexpr int kWordRows = 1 << kWordShift;
constexpr unsigned kWholeWarp = 0xffffffffu;

/// Rows [32 i, 32 i + 32) of a tensor: bit r set where row 32 i + r has a gradient, and the
/// position of the first of them.
struct alignas(8) RowWord {
  std::uint32_t rows;
  std::uint32_t first;
};

/// First position whose id is not below `row`. All lanes of a warp together: 32 ids a round.
template <class Id>
__device__ std::int64_t lower_bound(const Id* __restrict__ ids, std::int64_t n, std::int64_t row) {
  const int lane = threadIdx.x % 32;
  std::int64_t low = 0, high = n;
  while (low < high) {
    const std::int64_t stride = (high - low + 31) / 32;
    const std::int64_t at = low + lane * stride;
    const bool is_below = at < high && ids[at] < row;
    const int below = __popc(__ballot_sync(kWholeWarp, is_below));
    if (below == 0) return low;
    const std::int64_t last_below = low + (below - 1) * stride;
    high = min(high, last_below + stride);
    low = last_below + 1;
  }
  return low;
}

/// A warp fills 32 words, walking through the ids of their rows 32 at a time.
template <class Id, int kWarps>
__global__ void __launch_bounds__(32 * kWarps)
    index_rows_kernel(const Id* __restrict__ ids, std::int64_t n_ids, RowWord* __restrict__ words,
                      std::int64_t n_words) {
  __shared__ RowWord found[kWarps][32];
  const int lane = threadIdx.x % 32;
  RowWord* const mine = found[threadIdx.x / 32];
  const std::int64_t first_word =
      (static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32) * 32;
  if (first_word >= n_words) return;
  mine[lane] = {0, 0};
  __syncwarp();
  const std::int64_t first_row = first_word * kWordRows;
  std::int64_t start = lower_bound(ids, n_ids, first_row);
  for (bool goes_on = true; goes_on; start += 32) {
    const std::int64_t row = start + lane < n_ids ? ids[start + lane] - first_row : 32 * kWordRows;
    const bool is_here = row < 32 * kWordRows;
    const int word = is_here ? static_cast<int>(row) / kWordRows : 32;
    // Rows of one word are neighbours: each lane gathers those of the lanes after it.
    std::uint32_t bits = 1u << (row % kWordRows);
    for (int apart = 1; apart < 32; apart *= 2) {
      const int other = __shfl_down_sync(kWholeWarp, word, apart);
      const std::uint32_t theirs = __shfl_down_sync(kWholeWarp, bits, apart);
      if (lane + apart < 32 && other == word) bits |= theirs;
    }
    const int before = __shfl_up_sync(kWholeWarp, word, 1);
    if (is_here && (lane == 0 || before != word)) {
      RowWord& w = mine[word];
      if (w.rows == 0) w.first = static_cast<std::uint32_t>(start + lane);
      w.rows |= bits;
    }
    goes_on = __all_sync(kWholeWarp, is_here);
    __syncwarp();
  }
  if (first_word + lane < n_words) words[first_word + lane] = mine[lane];
}

/// Where the gradients of rows lie; by row means that every row has its own.
template <bool kByRow>
class Positions {
 public:
  __device__ explicit Positions(const RowWord* __restrict__ words) : words_(words) {}

  /// Of `row`, or -1. Rows asked for one after the other cost one look-up a word.
  __device__ std::int64_t operator()(std::int64_t row) {
    if (kByRow) return row;
    const int at = static_cast<int>(row >> kWordShift);
    if (at != at_) word_ = words_[at_ = at];
    const std::uint32_t bit = 1u << (static_cast<std::uint32_t>(row) % kWordRows);
    if ((word_.rows & bit) == 0) return -1;
    return std::int64_t{word_.first} + __popc(word_.rows & (bit - 1));
  }

 private:
  const RowWord* __restrict__ words_;
  int at_ = -1;
  RowWord word_{0, 0};
};

}  // namespace
}  // namespace gs::adam
