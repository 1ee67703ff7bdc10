// SPDX-License-Identifier: Apache-2.0
// Sleeping between looks at something that nobody announces.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace gs::pinned {

/// Sleeps before the next look, `waited_s` after the first. The longer the wait so far, the longer
/// the sleep: a wait ends late by a 256th of its length at most or by the system's shortest sleep,
/// and a long one costs one look in a millisecond: a look takes 6 to 8 us of a processor on a
/// virtual machine. Never longer than `left_s`.
inline void doze(double waited_s, double left_s) {
  constexpr double kShortest = 10e-6, kLongest = 1e-3;
  const double nap = std::clamp(waited_s / 256, kShortest, kLongest);
  std::this_thread::sleep_for(std::chrono::duration<double>(std::min(nap, std::max(left_s, 0.0))));
}

}  // namespace gs::pinned
