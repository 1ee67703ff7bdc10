// SPDX-License-Identifier: Apache-2.0
#include "mask.hpp"

#include <cstring>

namespace gs::adam {
namespace {

// Eight rows at once. Rows that are seen, and those that are not, come in runs: most words are all
// zeros or all ones.
constexpr std::int64_t kWordRows = 8;
constexpr std::uint64_t kOnes = 0x0101010101010101u;

/// Bytes from `row` on, zero beyond n; the first row's in the lowest bits.
std::uint64_t word_at(const std::uint8_t* mask, std::int64_t row, std::int64_t n) {
  std::uint64_t word = 0;
  std::memcpy(&word, mask + row, static_cast<std::size_t>(n - row < kWordRows ? n - row : 8));
  return word & kOnes;
}

}  // namespace

std::int64_t count_rows(const std::uint8_t* mask, std::int64_t n) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) count += mask[i] & 1;
  return count;
}

void write_rows(const std::uint8_t* mask, std::int64_t n, std::int32_t* ids) {
  for (std::int64_t first = 0; first < n; first += kWordRows) {
    const auto row = static_cast<std::int32_t>(first);
    std::uint64_t word = word_at(mask, first, n);
    if (word == kOnes) {
      for (std::int32_t k = 0; k < kWordRows; ++k) ids[k] = row + k;
      ids += kWordRows;
      continue;
    }
    for (; word != 0; word &= word - 1) *ids++ = row + __builtin_ctzll(word) / 8;
  }
}

}  // namespace gs::adam
