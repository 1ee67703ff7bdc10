// SPDX-License-Identifier: Apache-2.0
// What a child process must not take over from its parent.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <atomic>

namespace gs {

/// Knows which process something belongs to. Locks and threads of the parent are of no use in a
/// child after fork: who held the ones, or was the others, does not exist there.
class OfProcess {
 public:
  /// In a child, calls renew() once; other threads of the child wait for that. Nothing elsewhere.
  /// What renew() throws ends the process: half of what it renews may be the parent's still.
  template <class Renew>
  void renewed(Renew&& renew) {
    const pid_t self = getpid();
    for (pid_t owner = owner_.load(std::memory_order_acquire); owner != self;
         owner = owner_.load(std::memory_order_acquire)) {
      // -self: one thread is at it. Of a parent that was, when it forked, -parent is left.
      if (owner == -self) {
        sched_yield();
      } else if (owner_.compare_exchange_strong(owner, -self)) {
        [&]() noexcept { renew(); }();
        owner_.store(self, std::memory_order_release);
      }
    }
  }

 private:
  std::atomic<pid_t> owner_{getpid()};
};

}  // namespace gs
