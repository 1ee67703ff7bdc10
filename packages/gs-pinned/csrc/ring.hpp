// SPDX-License-Identifier: Apache-2.0
// Bounded staging memory that is handed out in order and never overwritten before its release.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "memory.hpp"
#include "signal.hpp"

namespace gs::pinned {

/// A run of the ring's bytes and the signal that tells when they have landed.
struct RingSlot {
  std::uint64_t serial = 0;
  std::size_t begin = 0;
  std::size_t bytes = 0;
  Signal* signal = nullptr;  // owned by the ring
  std::uint32_t value = 0;
};

/// Memory handed out slot after slot, each one contiguous. Slots may be released in any order and
/// are used again in the order in which they were taken. Producers block while there is no room.
/// Thread-safe.
class Ring {
 public:
  enum class Outcome { kTaken, kTimedOut, kClosed, kAgain };
  struct Taken {
    std::size_t slots, bytes;
  };

  /// Exactly `bytes`, rounded up to pages. `may_be_pageable`: see Memory::grow.
  Ring(std::size_t bytes, Lock lock, int device, bool may_be_pageable);

  /// Blocks until `bytes` are free, one run of them; a negative timeout waits for good. Returns
  /// kAgain now and then so that the caller can look at the keyboard. Throws gs::Error when the
  /// ring could never hold them.
  Outcome take(std::size_t bytes, double timeout_s, RingSlot* slot);

  /// The slot's bytes may be handed out again: at once if only its taker wrote them; once they have
  /// landed if they were sent; and where sending them was begun and given up, when no stream uses
  /// the ring any more.
  void release(std::uint64_t serial);

  /// Transfers into the slot are about to be enqueued.
  void begin_store(std::uint64_t serial);

  /// All of them have been: the slot's signal tells when they have landed. `device` -1: they have.
  void end_store(std::uint64_t serial, int device, cuda::StreamView stream);

  /// Producers that wait, and all later ones, are turned away.
  void close();

  std::size_t size() const { return size_; }
  /// What cannot be handed out now, slots released behind one that is not included.
  Taken taken();
  const std::shared_ptr<Memory>& memory() const { return memory_; }
  char* address_of(const RingSlot& slot) const { return memory_->data() + slot.begin; }

 private:
  enum class Store { kNone, kBegun, kEnded };
  struct Held {
    RingSlot slot;
    std::size_t extent;  // bytes kept for it
    Store store = Store::kNone;
    bool released = false;
  };
  Held* find(std::uint64_t serial);
  bool has_landed(const Held& held) const;
  static bool was_given_up(const Held& held);
  void reclaim(std::unique_lock<std::mutex>& guard);
  bool place(std::size_t extent, std::size_t* begin) const;

  const std::size_t size_;
  const std::size_t room_;  // whole cache lines
  std::shared_ptr<Memory> memory_;
  std::vector<std::unique_ptr<Signal>> signals_;  // slot number n uses signal n modulo their count
  mutable std::mutex mutex_;
  std::condition_variable freed_;
  std::deque<Held> held_;  // in the order in which they were taken
  std::uint64_t next_serial_ = 0;
  bool closed_ = false;
};

}  // namespace gs::pinned
