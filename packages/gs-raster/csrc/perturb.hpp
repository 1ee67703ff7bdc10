// SPDX-License-Identifier: Apache-2.0
// The noise of Markov chain Monte Carlo on the means of rows (Kheradmand et al., 3D Gaussian
// Splatting as Markov Chain Monte Carlo, 2024).
#pragma once

#include <cstdint>

#include "gs/cuda/stream_view.hpp"
#include "rows.hpp"

namespace gs::raster {

/// Rows that noise moves; row i is in slot i. Device memory.
struct NoisyRows {
  std::int64_t n;
  Column<float> means;            // 3, added to
  Column<const float> scales;     // 3, logarithms
  Column<const float> quats;      // 4, w x y z; one of length 0 rotates nothing
  Column<const float> opacities;  // 1, logits
  const std::int32_t* keys;       // (n,)
};

/// What the random numbers of a row follow from, besides the row's key.
struct NoiseSource {
  std::uint64_t seed;
  std::uint32_t purpose, step;
};

/// Adds size sigmoid(100 (0.005 - opacity)) C z to each mean, with C the row's covariance and z
/// three standard normal numbers of (source, key). The same bits wherever a row lies.
///
/// Enqueued on `stream` of the current device; does not synchronise. Throws gs::CudaError.
void perturb(const NoisyRows& rows, const NoiseSource& source, float size, cuda::StreamView stream);

}  // namespace gs::raster
