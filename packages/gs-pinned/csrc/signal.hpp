// SPDX-License-Identifier: Apache-2.0
// A number that only grows, set and waited for by streams and by host threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "gs/cuda/stream_view.hpp"
#include "in_flight.hpp"

namespace gs::pinned {

/// The word of a poisoned signal: at least every value, as uint32 and as the streams compare.
constexpr std::uint32_t kPoison = 0x7fffffffu;
constexpr std::uint32_t kMaxSignal = kPoison - 1;

/// One 32-bit word and the threads that wait for it. Values are in [0, kMaxSignal] and are to be
/// set in growing order, from the host or from one stream. Thread-safe.
///
/// The destructor never blocks: with stream work in flight the word is poisoned, which releases
/// streams that wait for it, and is left to the end of the process.
class Signal {
 public:
  enum class Outcome { kReached, kTimedOut, kPoisoned, kAgain };

  /// Page-locked, so that streams can use it, when `locked`; `device` does the locking.
  Signal(bool locked, int device);
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;
  ~Signal();

  std::uint32_t* word() const { return word_; }
  /// kPoison when poisoned. A stream that was told to write before may then have lowered the word,
  /// which is put right for those who wait for it alone.
  std::uint32_t value() const {
    const std::uint32_t word = __atomic_load_n(word_, __ATOMIC_ACQUIRE);
    if (!is_poisoned() || word == kPoison) return word;
    __atomic_store_n(word_, kPoison, __ATOMIC_RELEASE);
    return kPoison;
  }
  bool is_poisoned() const { return __atomic_load_n(&poisoned_, __ATOMIC_ACQUIRE); }
  std::string reason() const;

  /// From the host: value() becomes at least `value` and waiters wake. Does nothing when poisoned.
  void set(std::uint32_t value);

  /// Every waiter, thread or stream, is released; threads learn the reason.
  void poison(const std::string& reason);

  /// Whether a stream may be waiting for a value not reached yet.
  bool holds_streams() const { return __atomic_load_n(word_, __ATOMIC_ACQUIRE) < awaited_; }

  /// Enqueued on a stream. May block while the stream's queue is full, and keep no other thread
  /// from set() and poison() meanwhile: they may be what empties it. Throw gs::CudaError, also in a
  /// build without CUDA.
  void set_on(int device, cuda::StreamView stream, std::uint32_t value);
  void wait_on(int device, cuda::StreamView stream, std::uint32_t value);

  /// Blocks the calling thread until value() >= `value`, spinning for `spin_s` first. A negative
  /// timeout waits for good. Returns kAgain now and then, so that the caller can look at other
  /// things, such as the keyboard, before it calls again; `waited_s` is what earlier calls took.
  /// Throws gs::CudaError when a stream that was to set the value has failed.
  ///
  /// Asks CUDA for nothing before that: a thread that is stuck in a full queue must keep nobody
  /// from seeing a word change.
  Outcome wait(std::uint32_t value, double timeout_s, double spin_s, double waited_s = 0);

  /// In this process, not in a child of the one that created it.
  bool is_usable() const;

 private:
  const bool locked_;
  const int pid_;
  std::uint32_t* const word_;
  bool poisoned_ = false;
  std::atomic<std::uint32_t> awaited_{0};   // the largest value that a stream was told to wait for
  std::atomic<bool> captured_{false};       // into a graph, whose replays use the word
  std::atomic<std::uint32_t> promised_{0};  // the largest value that a stream was told to set
  std::mutex writes_;                       // taken before mutex_; keeps set_on calls in order
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string reason_;
  InFlight in_flight_;
};

}  // namespace gs::pinned
