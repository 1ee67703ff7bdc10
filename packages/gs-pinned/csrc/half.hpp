// SPDX-License-Identifier: Apache-2.0
// IEEE 754 half precision on hosts whose compiler may have no type for it.
#pragma once

#include <cstdint>
#include <cstring>

namespace gs::pinned {

inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t fraction = half & 0x3ffu;
  std::uint32_t bits;
  if (exponent == 0x1f) {
    bits = sign | 0x7f800000u | (fraction << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (fraction << 13);
  } else {
    // Zero or subnormal: the fraction counts steps of 2^-24, which a float holds exactly.
    const float value = static_cast<float>(fraction) * 5.9604644775390625e-8f;
    std::memcpy(&bits, &value, sizeof(bits));
    bits |= sign;
  }
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Rounds to nearest, ties to even; overflows to infinity.
inline std::uint16_t float_to_half(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 0x7e00u;   // not a number
  if (bits >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and up
  if (bits < 0x38800000u) {
    // Below 2^-14: adding 0.5 makes the float adder round to steps of 2^-24.
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof(magnitude));
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, sizeof(bits));
    return sign | static_cast<std::uint16_t>(bits - 0x3f000000u);
  }
  const std::uint32_t odd = (bits >> 13) & 1u;
  bits += 0xfffu + odd;
  return sign | static_cast<std::uint16_t>((bits >> 13) - (112u << 10));
}

}  // namespace gs::pinned
