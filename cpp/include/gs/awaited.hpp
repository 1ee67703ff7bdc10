// SPDX-License-Identifier: Apache-2.0
// Waiting for a number to change: awake for a moment, then asleep.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "gs/spin_pause.hpp"

namespace gs {

/// A number that threads wait for. Who changes it calls wake() afterwards.
///
/// Waking a sleeping thread costs tens of microseconds, so a waiting one stays awake for about as
/// long before it sleeps: what follows soon starts at once.
struct Awaited {
  std::atomic<std::uint32_t> value{0};

  /// Returns the value once it is not `seen`.
  std::uint32_t wait(std::uint32_t seen) {
    const auto end = std::chrono::steady_clock::now() + kAwake;
    do {
      for (int i = 0; i < kLooks; ++i) {
        const std::uint32_t now = value.load();
        if (now != seen) return now;
        spin_pause();
      }
    } while (std::chrono::steady_clock::now() < end);
    sleepers.fetch_add(1);
    std::uint32_t now = value.load();
    for (; now == seen; now = value.load())
      syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    sleepers.fetch_sub(1);
    return now;
  }

  /// Wakes up to n threads that sleep. One about to sleep sees the change instead.
  void wake(int n) {
    if (sleepers.load() > 0) syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, n, nullptr, nullptr, 0);
  }

 private:
  static constexpr std::chrono::microseconds kAwake{30};
  static constexpr int kLooks = 32;  // between looks at the clock

  std::atomic<int> sleepers{0};
  static_assert(sizeof(value) == sizeof(std::uint32_t), "the kernel looks at the bare number");
};

}  // namespace gs
