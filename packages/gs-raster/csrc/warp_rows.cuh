// SPDX-License-Identifier: Apache-2.0
// Rows of a few words between tables and shared memory: the lanes of a warp take words of one row,
// so that accesses are contiguous wherever the row lies.
#pragma once

#include <cstdint>

#include "rows.hpp"
#include "warp.cuh"

namespace gs::raster {
namespace {

// Rows whose words are on their way before the first is looked at; fewer where registers are short.
constexpr int kRowsInFlight = 8, kSumsInFlight = 4;

/// Words from one staged row to the next: odd, so that lanes that read the same word of their rows
/// meet different banks.
template <int kWords>
constexpr int kStagedPitch = kWords | 1;

/// Words `lane` and `lane + 32` of the rows of a table, as one lane sees them. Word w of slot s is
/// at data + s * pitch.
template <class T>
struct LaneWords {
  Column<T> low, high;
};

template <class T>
__device__ __forceinline__ T* at(const Column<T>& column, std::int32_t slot) {
  return column.data + slot * column.pitch;
}

template <class T>
__device__ __forceinline__ Column<T> word(const Column<T>& column, int w) {
  return {column.data + w, column.pitch};
}

/// A row's harmonics: sh0, then shN.
template <class T>
__device__ __forceinline__ LaneWords<T> harmonic_words(const Column<T>& sh0, const Column<T>& shN,
                                                       int lane) {
  return {lane < 3 ? word(sh0, lane) : word(shN, lane - 3), word(shN, lane + kWarp - 3)};
}

/// Which of a warp's rows come next. All lanes hold the same.
struct RowQueue {
  unsigned rows;  // bit r: row r is still to come

  /// -1 after the last.
  __device__ __forceinline__ int pop() {
    const int row = __ffs(rows) - 1;
    rows &= rows - 1;
    return row;
  }
};

/// Copies the first kWords words of the warp's rows of `mask` from their slots to staged + row *
/// pitch. `slot` is that of the lane's own row. All lanes of the warp together.
template <int kWords>
__device__ __forceinline__ void stage_rows(const LaneWords<const float>& words, std::int32_t slot,
                                           unsigned mask, float* staged) {
  constexpr int kPitch = kStagedPitch<kWords>;
  const int lane = threadIdx.x % kWarp;
  RowQueue queue{mask};
  while (queue.rows != 0) {
    int row[kRowsInFlight];
    float low[kRowsInFlight], high[kRowsInFlight];
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      row[k] = queue.pop();
      const std::int32_t from = __shfl_sync(kWholeWarp, slot, row[k] & (kWarp - 1));
      if (row[k] < 0) continue;
      if (lane < kWords) low[k] = __ldg(at(words.low, from));
      if (lane + kWarp < kWords) high[k] = __ldg(at(words.high, from));
    }
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      if (row[k] < 0) continue;
      if (lane < kWords) staged[row[k] * kPitch + lane] = low[k];
      if (lane + kWarp < kWords) staged[row[k] * kPitch + lane + kWarp] = high[k];
    }
  }
}

/// Adds the staged words of the warp's rows of `active` to those at their places.
template <int kWords>
__device__ __forceinline__ void add_rows(const LaneWords<float>& words, std::int32_t place,
                                         unsigned active, const float* staged) {
  constexpr int kPitch = kStagedPitch<kWords>;
  const int lane = threadIdx.x % kWarp;
  RowQueue queue{active};
  while (queue.rows != 0) {
    int row[kSumsInFlight];
    std::int32_t to[kSumsInFlight];
    float low[kSumsInFlight], high[kSumsInFlight];
#pragma unroll
    for (int k = 0; k < kSumsInFlight; ++k) {
      row[k] = queue.pop();
      to[k] = __shfl_sync(kWholeWarp, place, row[k] & (kWarp - 1));
      if (row[k] < 0) continue;
      if (lane < kWords) low[k] = *at(words.low, to[k]);
      if (lane + kWarp < kWords) high[k] = *at(words.high, to[k]);
    }
#pragma unroll
    for (int k = 0; k < kSumsInFlight; ++k) {
      if (row[k] < 0) continue;
      const float* const term = staged + row[k] * kPitch + lane;
      if (lane < kWords) *at(words.low, to[k]) = low[k] + term[0];
      if (lane + kWarp < kWords) *at(words.high, to[k]) = high[k] + term[kWarp];
    }
  }
}

/// Writes n_words words, kWords <= n_words <= 64, of the warp's rows of `mask`: the staged ones of
/// the rows that are `active`, and 0 for all others.
template <int kWords>
__device__ __forceinline__ void write_rows(const LaneWords<float>& words, int n_words,
                                           std::int32_t place, unsigned mask, unsigned active,
                                           const float* staged) {
  constexpr int kPitch = kStagedPitch<kWords>;
  const int lane = threadIdx.x % kWarp;
  for (RowQueue queue{mask}; queue.rows != 0;) {
    const int row = queue.pop();
    const bool is_active = (active >> row & 1u) != 0;
    const std::int32_t to = __shfl_sync(kWholeWarp, place, row);
    const float* const value = staged + row * kPitch + lane;
    if (lane < n_words) *at(words.low, to) = is_active && lane < kWords ? value[0] : 0.0f;
    if (lane + kWarp < n_words)
      *at(words.high, to) = is_active && lane + kWarp < kWords ? value[kWarp] : 0.0f;
  }
}

}  // namespace
}  // namespace gs::raster
