// SPDX-License-Identifier: Apache-2.0
// Standard normal numbers that are a function of counter and key.
//
// The bits are those of Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy
// as 1, 2, 3, SC 2011), the numbers those of the transform of Box and Muller. With words w0, w1 of
// the bits, u = (w0 + 1) / 2^32 and a = 2 pi w1 / 2^32, they are sqrt(-2 ln u) (cos a, sin a). All
// is float32: integers are reduced before they are rounded, so that each number has all but the
// last two bits.
#pragma once

#include <cstdint>

#include "vec3.cuh"

namespace gs::raster {
namespace {

struct PhiloxCounter {
  std::uint32_t w0, w1, w2, w3;
};

__device__ __forceinline__ PhiloxCounter philox(PhiloxCounter counter, std::uint64_t key) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter.w0;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter.w2;
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter.w1 ^ k0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter.w3 ^ k1,
               static_cast<std::uint32_t>(product0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

/// sqrt(-2 ln((word + 1) / 2^32)), 0 to 6.7.
__device__ __forceinline__ float normal_radius(std::uint32_t word) {
  constexpr float kUnit = 1.0f / 4294967296.0f;
  // The upper half by what is missing to 1, which keeps its digits where the logarithm is small.
  const float logarithm = word < 0x80000000u ? logf(static_cast<float>(word + 1u) * kUnit)
                                             : log1pf(-static_cast<float>(~word) * kUnit);
  return sqrtf(-2.0f * logarithm);
}

struct Direction {
  float cosine, sine;
};

/// Of the angle 2 pi word / 2^32.
__device__ __forceinline__ Direction normal_direction(std::uint32_t word) {
  // An eighth of a turn at most from the nearest quarter: there both keep their digits.
  const std::uint32_t quarter = (word + (1u << 29)) >> 30;
  const auto rest = static_cast<std::int32_t>(word - (quarter << 30));
  float sine, cosine;
  sincospif(static_cast<float>(rest) * (1.0f / 2147483648.0f), &sine, &cosine);
  const bool is_odd = (quarter & 1u) != 0;
  const float along = is_odd ? sine : cosine, across = is_odd ? cosine : sine;
  return {((quarter + 1u) & 2u) != 0 ? -along : along, (quarter & 2u) != 0 ? -across : across};
}

/// The first three numbers of a block.
__device__ __forceinline__ Float3 three_normals(const PhiloxCounter& counter, std::uint64_t key) {
  const PhiloxCounter words = philox(counter, key);
  const float radius = normal_radius(words.w0);
  const Direction direction = normal_direction(words.w1);
  return {radius * direction.cosine, radius * direction.sine,
          normal_radius(words.w2) * normal_direction(words.w3).cosine};
}

}  // namespace
}  // namespace gs::raster
