// SPDX-License-Identifier: Apache-2.0
// Check first, then work, both by all threads of a pool, which is woken once.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

#include "gs/thread_pool.hpp"

namespace gs::adam {

/// Positions [0, n) in pieces of `grain`. Every slot has an even share of consecutive ones, and who
/// is done with his helps the others, so that two rounds over the same positions mostly find them
/// in the same core's cache.
class Pieces {
 public:
  static constexpr int kMostSlots = 64;

  Pieces(std::int64_t n, std::int64_t grain, int slots)
      : n_(n), grain_(std::max<std::int64_t>(grain, 1)), slots_(slots) {
    for (int slot = 0; slot < slots_; ++slot) next_[slot].piece.store(first_of(slot));
  }

  std::int64_t count() const { return (n_ + grain_ - 1) / grain_; }

  template <class Body>
  void work(int slot, const Body& body) {
    for (int k = 0; k < slots_; ++k) {
      const int from = (slot + k) % slots_;
      const std::int64_t end = first_of(from + 1);
      while (next_[from].piece.load(std::memory_order_relaxed) < end) {
        const std::int64_t piece = next_[from].piece.fetch_add(1, std::memory_order_relaxed);
        if (piece >= end) break;
        body(piece * grain_, std::min((piece + 1) * grain_, n_));
        done_.fetch_add(1, std::memory_order_acq_rel);
      }
    }
  }

  /// Returns when every piece has been worked on; those that are not have a thread at work.
  void wait() const {
    constexpr int kSpins = 2000;
    for (int spins = 0; done_.load(std::memory_order_acquire) < count(); ++spins)
      if (spins > kSpins) std::this_thread::yield();
  }

 private:
  struct alignas(64) Next {
    std::atomic<std::int64_t> piece;
  };

  std::int64_t first_of(int slot) const { return count() * slot / slots_; }

  std::int64_t n_;
  std::int64_t grain_;
  int slots_;
  std::array<Next, kMostSlots> next_;
  alignas(64) std::atomic<std::int64_t> done_{0};
};

/// check(first, last) for pieces of [0, n), and, unless one of them returned false,
/// work(first, last) for pieces of [0, n) after all of them. Neither may throw. Returns whether it
/// worked.
template <class Check, class Work>
bool check_then_work(ThreadPool& pool, std::int64_t n, std::int64_t check_grain,
                     std::int64_t work_grain, const Check& check, const Work& work) {
  const std::int64_t most = (n + work_grain - 1) / work_grain;
  if (most <= 1) {
    if (n > 0 && !check(0, n)) return false;
    if (n > 0) work(0, n);
    return true;
  }
  const int slots =
      static_cast<int>(std::min<std::int64_t>({pool.size(), Pieces::kMostSlots, most}));
  Pieces checks(n, check_grain, slots), pieces(n, work_grain, slots);
  std::atomic<bool> is_good{true};
  pool.parallel_for(0, slots, 1, [&](std::int64_t slot, std::int64_t) {
    checks.work(static_cast<int>(slot), [&](std::int64_t first, std::int64_t last) {
      if (!check(first, last)) is_good.store(false, std::memory_order_relaxed);
    });
    checks.wait();
    if (!is_good.load(std::memory_order_relaxed)) return;
    pieces.work(static_cast<int>(slot), work);
  });
  return is_good.load();
}

}  // namespace gs::adam
