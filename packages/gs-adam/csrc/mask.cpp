// SPDX-License-Identifier: Apache-2.0
#include "mask.hpp"

#include <cstring>

namespace gs::adam {
namespace {

// Eight rows at once. Rows that are seen, and those that are not, come in runs: most words are all
// zeros or all ones.
constexpr std::int64_t kWordRows = 8;
constexpr std::uint64_t kOnes = 0x0101010101010101u;
// What a thread looks at in one piece, a multiple of the above.
constexpr std::int64_t kPartRows = std::int64_t{1} << 17;

/// Bytes from `row` on, zero beyond n; the first row's in the lowest bits.
std::uint64_t word_at(const std::uint8_t* mask, std::int64_t row, std::int64_t n) {
  std::uint64_t word = 0;
  std::memcpy(&word, mask + row, static_cast<std::size_t>(n - row < kWordRows ? n - row : 8));
  return word & kOnes;
}

std::int64_t count_between(const std::uint8_t* mask, std::int64_t first, std::int64_t last) {
  std::int64_t count = 0;
  for (std::int64_t i = first; i < last; ++i) count += mask[i] & 1;
  return count;
}

void write_between(const std::uint8_t* mask, std::int64_t first, std::int64_t last,
                   std::int32_t* ids) {
  for (; first < last; first += kWordRows) {
    const auto row = static_cast<std::int32_t>(first);
    std::uint64_t word = word_at(mask, first, last);
    if (word == kOnes) {
      for (std::int32_t k = 0; k < kWordRows; ++k) ids[k] = row + k;
      ids += kWordRows;
      continue;
    }
    for (; word != 0; word &= word - 1) *ids++ = row + __builtin_ctzll(word) / 8;
  }
}

}  // namespace

Mask::Mask(const std::uint8_t* bytes, std::int64_t n, ThreadPool& pool)
    : bytes_(bytes), n_(n), pool_(pool), firsts_((n + kPartRows - 1) / kPartRows + 1) {
  pool.parallel_for(0, n, kPartRows, [&](std::int64_t first, std::int64_t last) {
    firsts_[first / kPartRows + 1] = count_between(bytes_, first, last);
  });
  for (std::size_t part = 1; part < firsts_.size(); ++part) firsts_[part] += firsts_[part - 1];
}

void Mask::write(std::int32_t* ids) const {
  pool_.parallel_for(0, n_, kPartRows, [&](std::int64_t first, std::int64_t last) {
    write_between(bytes_, first, last, ids + firsts_[first / kPartRows]);
  });
}

}  // namespace gs::adam
