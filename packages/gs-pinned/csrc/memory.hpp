// SPDX-License-Identifier: Apache-2.0
// Host memory that grows at its end and never moves.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gs/of_process.hpp"
#include "in_flight.hpp"
#include "pages.hpp"

namespace gs::pinned {

/// Address space reserved once, committed from the front in chunks, each page-locked when it is
/// committed. What is committed is zero and stays where it is.
///
/// Owner of its pages. The destructor waits for the transfers that were recorded on it, then
/// unlocks and unmaps; in a child process after fork it does nothing, and page-locked memory does
/// not exist there.
///
/// grow() calls exclude one another; reading data() and size() meanwhile is safe.
class Memory {
 public:
  /// Reserves `reserved` bytes and commits none. `device` is the CUDA device whose context does the
  /// locking; every device sees the result. `is_counted`: towards GS_PINNED_LIMIT_BYTES. Throws
  /// gs::MemoryError.
  Memory(std::size_t reserved, Lock lock, int device, bool is_counted = true);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  char* data() const { return data_; }
  /// Bytes that may be read and written.
  std::size_t size() const { return size_; }
  std::size_t reserved() const { return reserved_; }
  /// Page-locked in full, in the way asked for; false from the first refusal on.
  bool is_locked() const { return lock_ != Lock::kNone && !refused_; }
  /// Kernels and copy engines can read it.
  bool is_device_visible() const { return lock_ == Lock::kCuda && !refused_; }
  /// A child process after fork has these pages: none of them is locked for a device.
  bool is_inherited() const { return lock_ != Lock::kCuda || locked_size_ == 0; }
  /// Bytes locked; where locking was refused, those that were before.
  std::size_t locked_size() const { return locked_size_; }
  /// Why locking was refused; empty when it was not.
  const std::string& refusal() const { return refusal_; }
  /// Bytes where one locked chunk ends and the next begins, first to last; the last is size().
  /// One copy of a copy engine must not cross such a place.
  std::vector<std::size_t> chunk_ends() const;

  /// Makes at least `bytes` usable. The first commit is exact to the page; later ones take at
  /// least 1/128 of what is there, so that repeated growth stays cheap within 1 % of the memory
  /// asked for; where that much is not to be had, they are exact as well. When locking is refused
  /// everything counts as pageable if `may_be_pageable`, though chunks locked before stay so, for
  /// kernels may read them; else gs::MemoryError is thrown and nothing has changed. Throws
  /// gs::MemoryError when memory runs out and gs::Error beyond the reservation.
  void grow(std::size_t bytes, bool may_be_pageable);

  /// In this process, not in a child of the one that created it.
  bool is_usable() const;

  InFlight& in_flight() { return in_flight_; }

  /// Blocks until no transfer uses the pages any more. A child process has none, and a thread that
  /// it lacks may hold their lock.
  void wait_idle() noexcept {
    if (is_usable()) in_flight_.wait();
  }

  /// Bytes locked by all Memory of the process, and the most that may be (GS_PINNED_LIMIT_BYTES).
  static std::size_t locked_total();
  static std::size_t locked_limit();

 private:
  void unlock_all() noexcept;
  std::string lock_range(std::size_t begin, std::size_t end, std::size_t limit);
  std::string commit(std::size_t begin, std::size_t end, std::size_t limit);
  std::mutex& mutex() const;

  char* data_ = nullptr;
  std::atomic<std::size_t> size_{0};
  const std::size_t reserved_;
  const Lock lock_;
  const int device_;
  const bool is_counted_;
  std::atomic<bool> refused_{false};
  std::atomic<std::size_t> locked_size_{0};
  std::string refusal_;
  std::vector<std::size_t> locked_ends_;
  mutable std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
  mutable OfProcess mutex_process_;
  InFlight in_flight_;
  const int pid_;
};

}  // namespace gs::pinned
