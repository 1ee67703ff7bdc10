// SPDX-License-Identifier: Apache-2.0
// Positions along a Morton (Z-order) curve.
#pragma once

#include "camera.hpp"

namespace gs::cull {

/// The cube that the curve fills: 2^21 cells along each axis.
struct MortonCube {
  double low[3];
  double cells_per_unit;  // 0 when the cube has no size
};

/// Spreads the lower 21 bits of x to every third bit.
GS_CULL_HD std::uint64_t spread_bits(std::uint64_t x) {
  x = (x | x << 32) & 0x001F00000000FFFFull;
  x = (x | x << 16) & 0x001F0000FF0000FFull;
  x = (x | x << 8) & 0x100F00F00F00F00Full;
  x = (x | x << 4) & 0x10C30C30C30C30C3ull;
  return (x | x << 2) & 0x1249249249249249ull;
}

/// 63 bits: bit 3 i + a is bit i of the cell along axis a. Rows that are not finite come last.
GS_CULL_HD std::uint64_t morton_code(const float* mean, const MortonCube& cube) {
  std::uint64_t code = 0;
  for (int a = 0; a < 3; ++a) {
    if (!(fabsf(mean[a]) <= 3.4028235e38f)) return 0x7FFFFFFFFFFFFFFFull;
    double cell = (mean[a] - cube.low[a]) * cube.cells_per_unit;
    cell = cell < 0 ? 0 : cell > 2097151 ? 2097151 : cell;
    code |= spread_bits(static_cast<std::uint64_t>(cell)) << a;
  }
  return code;
}

}  // namespace gs::cull
