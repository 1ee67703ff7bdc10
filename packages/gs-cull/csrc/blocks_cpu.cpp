// SPDX-License-Identifier: Apache-2.0
#include "blocks_cpu.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include "gs/thread_pool.hpp"

namespace gs::cull {

namespace {

struct Entry {
  std::uint64_t code;
  std::int32_t row;
};

constexpr int kDigitBits = 11;
constexpr std::int64_t kDigits = 1 << kDigitBits;
constexpr int kCodeBits = 63;

/// One stable pass of a radix sort by the digit at `shift`. Pieces count their digits, the counts
/// become offsets (digit by digit, piece by piece), pieces move their entries. Returns false when
/// all entries share the digit and nothing was moved.
bool radix_pass(ThreadPool& pool, const Entry* from, Entry* to, std::int64_t n, int shift) {
  const std::int64_t pieces = std::min<std::int64_t>(4 * pool.size(), (n >> 14) + 1);
  const std::int64_t grain = (n + pieces - 1) / pieces;
  std::vector<std::array<std::int64_t, kDigits>> offsets(pieces);
  const auto digit = [shift](const Entry& e) { return (e.code >> shift) & (kDigits - 1); };
  pool.parallel_for(0, pieces, 1, [&](std::int64_t p, std::int64_t) {
    offsets[p].fill(0);
    for (std::int64_t i = p * grain; i < std::min(n, (p + 1) * grain); ++i)
      ++offsets[p][digit(from[i])];
  });
  std::int64_t sum = 0;
  for (std::int64_t d = 0; d < kDigits; ++d) {
    const std::int64_t before = sum;
    for (std::int64_t p = 0; p < pieces; ++p) {
      const std::int64_t count = offsets[p][d];
      offsets[p][d] = sum;
      sum += count;
    }
    if (sum - before == n) return false;
  }
  pool.parallel_for(0, pieces, 1, [&](std::int64_t p, std::int64_t) {
    for (std::int64_t i = p * grain; i < std::min(n, (p + 1) * grain); ++i)
      to[offsets[p][digit(from[i])]++] = from[i];
  });
  return true;
}

}  // namespace

void morton_order(ThreadPool& pool, const float* means, std::int64_t n, const MortonCube& cube,
                  std::int32_t* order) {
  // new[] without (): threads touch the pages first.
  const std::unique_ptr<Entry[]> a(new Entry[n]), b(new Entry[n]);
  pool.parallel_for(0, n, 1 << 15, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
      a[i] = {morton_code(means + 3 * i, cube), static_cast<std::int32_t>(i)};
  });
  Entry *from = a.get(), *to = b.get();
  for (int shift = 0; shift < kCodeBits; shift += kDigitBits)
    if (radix_pass(pool, from, to, n, shift)) std::swap(from, to);
  pool.parallel_for(0, n, 1 << 15, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) order[i] = from[i].row;
  });
}

void fit_blocks(ThreadPool& pool, const Geometry& geometry, const Blocking& blocking,
                const std::int32_t* blocks, const std::int32_t* stored, std::int64_t n,
                const Options& options, const BoundsArrays& out) {
  pool.parallel_for(0, n, 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t k = first; k < last; ++k) {
      const std::int64_t block = blocks[k], begin = block * blocking.size;
      const std::int64_t count = std::min<std::int64_t>(blocking.size, blocking.n_rows - begin);
      const std::int64_t start = std::int64_t{stored[k]} * blocking.size;
      Bounds bounds = no_bounds();
      std::int32_t not_finite = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t row = blocking.order != nullptr ? blocking.order[begin + i] : start + i;
        not_finite += !add_row(geometry, row, options, &bounds);
      }
      std::copy_n(bounds.lower, 3, out.lower + 3 * block);
      std::copy_n(bounds.upper, 3, out.upper + 3 * block);
      out.scale[block] = bounds.scale;
      out.not_finite[block] = not_finite;
    }
  });
}

void views_of_blocks(ThreadPool& pool, const BoundsArrays& bounds, std::int64_t n_blocks,
                     const std::vector<Camera>& cameras, const Options& options,
                     std::uint32_t* words) {
  const std::size_t n_words = (cameras.size() + 31) / 32;
  pool.parallel_for(0, n_blocks, 64, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) {
      const Bounds grown = grown_bounds(bounds, b, options);
      std::uint32_t* const out = words + b * n_words;
      std::fill_n(out, n_words, 0u);
      for (std::size_t v = 0; v < cameras.size(); ++v)
        if (may_show(cameras[v], grown)) out[v / 32] |= 1u << (v % 32);
    }
  });
}

}  // namespace gs::cull
