// SPDX-License-Identifier: Apache-2.0
#include "pair_counts.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

#include "gs/thread_pool.hpp"
#include "simd_kernels.hpp"

namespace gs::cull {

namespace {

constexpr std::int64_t kRows = 4096;
constexpr std::int64_t kLongs = kRows / 64;

}  // namespace

void pair_counts(ThreadPool& pool, const std::uint32_t* mask, std::int64_t n, int n_views,
                 std::int64_t* together) {
  const std::int64_t views = n_views, words = (views + 31) / 32;
  std::fill_n(together, views * views, 0);
  const SimdKernels& kernels = simd_kernels();
  std::mutex adding;
  // Few large pieces: each sums into a matrix of its own.
  const std::int64_t piece = std::max(kRows, (n / (4 * pool.size()) / kRows + 1) * kRows);
  pool.parallel_for(0, n, piece, [&](std::int64_t first, std::int64_t last) {
    std::vector<std::int64_t> sums(views * views);
    std::vector<std::uint64_t> rows(views * kLongs);  // a bit per row, view by view
    for (std::int64_t start = first; start < last; start += kRows) {
      const std::int64_t count = std::min(kRows, last - start);
      std::fill(rows.begin(), rows.end(), 0);
      for (std::int64_t r = 0; r < count; ++r)
        for (std::int64_t w = 0; w < words; ++w)
          for (std::uint32_t left = mask[(start + r) * words + w]; left != 0; left &= left - 1)
            rows[(32 * w + __builtin_ctz(left)) * kLongs + r / 64] |= std::uint64_t{1} << (r % 64);
      for (std::int64_t i = 0; i < views; ++i)
        for (std::int64_t j = i; j < views; ++j)
          sums[i * views + j] += kernels.common_bits(&rows[i * kLongs], &rows[j * kLongs], kLongs);
    }
    const std::lock_guard<std::mutex> lock(adding);
    for (std::int64_t i = 0; i < views; ++i)
      for (std::int64_t j = i; j < views; ++j) together[i * views + j] += sums[i * views + j];
  });
  for (std::int64_t i = 0; i < views; ++i)
    for (std::int64_t j = 0; j < i; ++j) together[i * views + j] = together[j * views + i];
}

}  // namespace gs::cull
