// SPDX-License-Identifier: Apache-2.0
#include "ring.hpp"

#include <algorithm>
#include <chrono>

#include "gs/error.hpp"

namespace gs::pinned {
namespace {

constexpr std::size_t kLine = 64;    // slots begin on cache lines
constexpr std::size_t kSlots = 256;  // taken at once, at most
constexpr double kLookUp = 0.1;      // seconds that take() may go without returning

}  // namespace

Ring::Ring(std::size_t bytes, Lock lock, int device, bool may_be_pageable)
    : size_(bytes),
      room_(round_up(bytes, kLine)),
      memory_(std::make_shared<Memory>(room_, lock, device)) {
  GS_CHECK(bytes >= kLine, "bytes must be at least ", kLine, ", got ", bytes);
  memory_->grow(room_, may_be_pageable);
  for (std::size_t i = 0; i < kSlots; ++i)
    signals_.push_back(std::make_unique<Signal>(lock == Lock::kCuda, device));
}

bool Ring::has_landed(const Held& held) const {
  if (held.store == Store::kBegun) return false;
  return held.store == Store::kNone || held.slot.signal->value() >= held.slot.value;
}

bool Ring::was_given_up(const Held& held) { return held.released && held.store == Store::kBegun; }

Ring::Held* Ring::find(std::uint64_t serial) {
  for (Held& held : held_)
    if (held.slot.serial == serial) return &held;
  return nullptr;
}

void Ring::reclaim(std::unique_lock<std::mutex>& guard) {
  std::vector<std::uint64_t> given_up;
  for (const Held& held : held_)
    if (was_given_up(held)) given_up.push_back(held.slot.serial);
  if (!given_up.empty()) {
    // Not under the lock: the driver may keep who asks waiting.
    guard.unlock();
    const bool busy = memory_->in_flight().busy();
    guard.lock();
    for (const std::uint64_t serial : given_up)
      if (Held* held = busy ? nullptr : find(serial)) held->store = Store::kNone;
  }
  while (!held_.empty() && held_.front().released && has_landed(held_.front())) held_.pop_front();
}

// Free bytes are those after the newest slot and before the oldest one, cyclically.
bool Ring::place(std::size_t extent, std::size_t* begin) const {
  *begin = 0;
  if (held_.empty()) return true;
  const std::size_t oldest = held_.front().slot.begin;
  const std::size_t after = held_.back().slot.begin + held_.back().extent;
  const bool wrapped = held_.back().slot.begin < oldest;
  if (after + extent <= (wrapped ? oldest : room_)) {
    *begin = after;
    return true;
  }
  return !wrapped && extent <= oldest;
}

Ring::Outcome Ring::take(std::size_t bytes, double timeout_s, RingSlot* slot) {
  const std::size_t extent = std::max(round_up(bytes, kLine), kLine);
  GS_CHECK(bytes <= size_, "a slot of ", bytes, " bytes must fit into the ring of ", size_,
           " bytes");
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock<std::mutex> guard(mutex_);
  for (;;) {
    if (closed_) return Outcome::kClosed;
    reclaim(guard);
    std::size_t begin = 0;
    if (held_.size() < kSlots && place(extent, &begin)) {
      Signal* signal = signals_[next_serial_ % kSlots].get();
      *slot = RingSlot{next_serial_, begin, bytes, signal,
                       static_cast<std::uint32_t>(next_serial_ / kSlots + 1)};
      held_.push_back(Held{*slot, extent});
      ++next_serial_;
      return Outcome::kTaken;
    }
    const double spent =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (timeout_s >= 0 && spent >= timeout_s) return Outcome::kTimedOut;
    if (spent >= kLookUp) return Outcome::kAgain;
    const double left = std::min(kLookUp, timeout_s >= 0 ? timeout_s : kLookUp) - spent;
    const Held& oldest = held_.front();
    if (oldest.released) {
      // Released before its bytes have landed: wait for the stream instead of a consumer.
      Signal* signal = oldest.slot.signal;
      const std::uint32_t value = oldest.slot.value;
      guard.unlock();
      (void)signal->wait(value, left, 0);
      guard.lock();
    } else {
      freed_.wait_for(guard, std::chrono::duration<double>(left));
    }
  }
}

void Ring::begin_store(std::uint64_t serial) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (Held* held = find(serial)) held->store = Store::kBegun;
}

void Ring::end_store(std::uint64_t serial, int device, cuda::StreamView stream) {
  RingSlot slot;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    const Held* held = find(serial);
    if (held == nullptr) return;
    slot = held->slot;
  }
  // Not under the lock: on a full queue this blocks.
  if (device < 0)
    slot.signal->set(slot.value);
  else
    slot.signal->set_on(device, stream, slot.value);
  std::lock_guard<std::mutex> guard(mutex_);
  if (Held* held = find(serial)) held->store = Store::kEnded;
}

void Ring::release(std::uint64_t serial) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (Held* held = find(serial)) held->released = true;
  freed_.notify_all();
}

void Ring::close() {
  std::lock_guard<std::mutex> guard(mutex_);
  closed_ = true;
  freed_.notify_all();
}

Ring::Taken Ring::taken() {
  std::unique_lock<std::mutex> guard(mutex_);
  reclaim(guard);
  Taken taken{held_.size(), 0};
  for (const Held& held : held_) taken.bytes += held.extent;
  return taken;
}

}  // namespace gs::pinned
