// SPDX-License-Identifier: Apache-2.0
// A lock that is had in the order in which it was asked for.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

#include "gs/awaited.hpp"

namespace gs {

/// Like std::mutex, which however lets a thread that gives it up and asks again at once have it
/// before one that sleeps, for as long as it goes on so.
class Turns {
 public:
  void lock() {
    const std::uint32_t mine = next_.fetch_add(1);
    for (std::uint32_t now = serving_.value.load(); now != mine;) now = serving_.wait(now);
  }

  void unlock() {
    serving_.value.fetch_add(1);
    serving_.wake(std::numeric_limits<int>::max());
  }

  /// Threads that have asked and not had it yet, while the caller has it.
  std::uint32_t n_waiting() const { return next_.load() - serving_.value.load() - 1; }

 private:
  std::atomic<std::uint32_t> next_{0};
  Awaited serving_;
};

}  // namespace gs
