// SPDX-License-Identifier: Apache-2.0
#include "signal.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "doze.hpp"
#include "gs/error.hpp"
#include "gs/spin_pause.hpp"
#include "held_streams.hpp"
#include "signal_word.hpp"

#if defined(GS_WITH_CUDA)
#include "fault.hpp"
#include "stream_word.hpp"
#include "transfer_cuda.hpp"
#endif

namespace gs::pinned {
namespace {

using Clock = std::chrono::steady_clock;

// How long a wait may go without looking up.
constexpr double kLookUp = 0.1;

#if defined(GS_WITH_CUDA)
void raise_to(std::atomic<std::uint32_t>* most, std::uint32_t value) {
  for (std::uint32_t last = *most; value > last && !most->compare_exchange_weak(last, value);) {
  }
}
#endif

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Signal::Signal(bool locked, int device)
    : locked_(locked), pid_(getpid()), word_(take_word(locked, device)) {}

Signal::~Signal() {
  if (!is_usable()) {
    in_flight_.forget();
    return;
  }
  forget_held_streams(this);
  if (!captured_ && !in_flight_.busy()) {
    give_word(word_, locked_);
  } else {
    __atomic_store_n(word_, kPoison, __ATOMIC_RELEASE);
    in_flight_.forget();
  }
}

bool Signal::is_usable() const { return pid_ == getpid(); }

std::string Signal::reason() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return reason_;
}

void Signal::set(std::uint32_t value) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!poisoned_ && value > this->value()) __atomic_store_n(word_, value, __ATOMIC_RELEASE);
  changed_.notify_all();
}

void Signal::poison(const std::string& reason) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!poisoned_) reason_ = reason;
  __atomic_store_n(&poisoned_, true, __ATOMIC_RELEASE);
  __atomic_store_n(word_, kPoison, __ATOMIC_RELEASE);
  changed_.notify_all();
}

#if defined(GS_WITH_CUDA)

void Signal::set_on(int device, cuda::StreamView stream, std::uint32_t value) {
  std::lock_guard<std::mutex> order(writes_);
  if (is_poisoned()) return;
  write_word_on(word_, value, device, stream);
  if (!in_flight_.record(device, stream)) captured_ = true;
  std::lock_guard<std::mutex> guard(mutex_);
  raise_to(&promised_, value);
  changed_.notify_all();
}

void Signal::wait_on(int device, cuda::StreamView stream, std::uint32_t value) {
  // Before the enqueuing, so that the end of the process can't come in between.
  raise_to(&awaited_, value);
  note_held_stream(this);
  // What may wait for the whole device comes before anything on it waits for us.
  load_kernels(device);
  (void)fault_record(device);
  wait_word_on(word_, value, device, stream);
  if (!in_flight_.record(device, stream)) captured_ = true;
}

#else

void Signal::set_on(int, cuda::StreamView, std::uint32_t) {
  GS_CHECK_AS(CudaError, false, "stream must be None in a build without CUDA");
}

void Signal::wait_on(int, cuda::StreamView, std::uint32_t) {
  GS_CHECK_AS(CudaError, false, "stream must be None in a build without CUDA");
}

#endif

Signal::Outcome Signal::wait(std::uint32_t value, double timeout_s, double spin_s,
                             double waited_s) {
  const Clock::time_point start = Clock::now();
  const bool limited = timeout_s >= 0;
  while (spin_s > 0 && this->value() < value) {
    for (int i = 0; i < 64 && this->value() < value; ++i) spin_pause();
    const double spent = seconds_since(start);
    if (limited && spent >= timeout_s) break;
    if (spent >= spin_s) break;
    if (spent < kLookUp) continue;
    in_flight_.raise_errors();
    return Outcome::kAgain;
  }
  const double until = limited ? std::min(kLookUp, timeout_s) : kLookUp;
  for (;;) {
    if (this->value() >= value) return is_poisoned() ? Outcome::kPoisoned : Outcome::kReached;
    const double spent = seconds_since(start);
    if (limited && spent >= timeout_s) {
      in_flight_.raise_errors();
      return Outcome::kTimedOut;
    }
    if (spent >= kLookUp) break;
    if (promised_ >= value) {
      doze(waited_s + spent, until - spent);
    } else {
      std::unique_lock<std::mutex> guard(mutex_);
      changed_.wait_for(guard, std::chrono::duration<double>(until - spent),
                        [&] { return this->value() >= value || promised_ >= value; });
    }
  }
  in_flight_.raise_errors();
  return Outcome::kAgain;
}

}  // namespace gs::pinned
