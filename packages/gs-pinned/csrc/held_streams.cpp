// SPDX-License-Identifier: Apache-2.0
#include "held_streams.hpp"

#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <unordered_set>

#include "signal.hpp"

namespace gs::pinned {
namespace {

constexpr const char* kEnding = "the process is ending";

struct Held {
  std::mutex mutex;
  std::unordered_set<Signal*> signals;
  std::string ending;  // why later waits are released; empty before the end
  const int pid = getpid();

  // Never destroyed. A child process after fork has none of its parent's signals, whose words are
  // not even mapped there, nor its lock.
  static Held& of_this_process() {
    static Held* held = new Held();
    if (held->pid != getpid()) held = new Held();
    return *held;
  }
};

// exit() calls handlers in reverse order. CUDA has registered its own before a stream can wait, so
// this one comes first.
void release_at_exit() {
  static const int registered = std::atexit([] { release_streams(kEnding, true); });
  (void)registered;
}

}  // namespace

void note_held_stream(Signal* signal) {
  release_at_exit();
  Held& held = Held::of_this_process();
  std::lock_guard<std::mutex> guard(held.mutex);
  if (!held.ending.empty()) return signal->poison(held.ending);
  held.signals.insert(signal);
}

void forget_held_streams(Signal* signal) {
  Held& held = Held::of_this_process();
  std::lock_guard<std::mutex> guard(held.mutex);
  held.signals.erase(signal);
}

void release_streams(const std::string& reason, bool ending) {
  Held& held = Held::of_this_process();
  std::lock_guard<std::mutex> guard(held.mutex);
  if (ending && held.ending.empty()) held.ending = reason;
  for (Signal* signal : held.signals)
    if (signal->holds_streams()) signal->poison(reason);
}

}  // namespace gs::pinned
