// SPDX-License-Identifier: Apache-2.0
// Sizes of launches.
#pragma once

#include <cstdint>

namespace gs::raster {

constexpr int kThreads = 256;

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Blocks of kThreads threads for n items, one each.
inline unsigned blocks_for(std::int64_t n) { return static_cast<unsigned>(ceil_div(n, kThreads)); }

}  // namespace gs::raster
