// SPDX-License-Identifier: Apache-2.0
// The photometric loss of an image, and its gradient, on a CUDA device.
#pragma once

#include <cstdint>

#include "gs/cuda/stream_view.hpp"
#include "splat.hpp"

namespace gs::raster {

/// An image and the photograph that it is compared with. Device memory.
struct ImagePair {
  const float* image;         // (height, width, 3)
  const std::uint8_t* truth;  // (height, width, 3), in 255ths, without gaps within a row
  std::int64_t truth_pitch;   // bytes from one row of truth to the next
  int width, height;
};

/// What |image - truth| of one value, and 1 - SSIM of one window and channel, count for.
struct LossWeights {
  float l1, dssim;
};

/// Doubles of workspace for photometric_loss() on the current device.
std::int64_t loss_partials(int width, int height);

/// share: () sum of the weighted |image - truth| over the pixels of `core`, and of the weighted
/// 1 - SSIM over all windows that lie inside the image (Wang et al. 2004; 11 x 11 pixels, sigma
/// 1.5). gradient: (height, width, 3) d share / d image.
///
/// With a mask, truth is (height, width, 4), and its fourth byte is 255 where the pixel counts.
/// Others have no error and no gradient, and a window counts where its centre does: its weights are
/// those of its pixels that count, over their sum (normalized convolution, Knutsson and Westin
/// 1993).
///
/// partials: (n_partials,) at least as many as loss_partials() says. All sums are taken in a fixed
/// order. Enqueued on `stream` of the current device; does not synchronise. Throws gs::CudaError.
void photometric_loss(const ImagePair& pair, bool has_mask, const Rect& core,
                      const LossWeights& weights, float* share, float* gradient, double* partials,
                      std::int64_t n_partials, cuda::StreamView stream);

}  // namespace gs::raster
