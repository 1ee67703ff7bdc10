// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gs {

/// Between two looks at memory that another thread will change: leaves the core to its sibling.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace gs
