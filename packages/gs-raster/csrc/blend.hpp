// SPDX-License-Identifier: Apache-2.0
// Alpha compositing of tile lists, and its gradient, on a CUDA device.
#pragma once

#include "gs/cuda/stream_view.hpp"
#include "sort.hpp"
#include "splat.hpp"

namespace gs::raster {

/// The pixels of a rectangle, row-major. Device memory.
struct Pixels {
  float* image;          // (h, w, 3)
  float* alpha;          // (h, w) 1 - transmittance, or none
  float* depth;          // (h, w) sum of weight times depth, or none
  float* transmittance;  // (h, w) what is left behind the last splat; for blend_backward()
  std::int32_t* last;    // (h, w) the tile's instance that came last, -1 for none; likewise
};

/// Composites splats front to back over a background.
///
/// background: (3,) on the device, or none for black.
/// Enqueued on `stream`; does not synchronise. Throws gs::CudaError.
void blend(const Splat* splats, const TileLists& lists, const Rect& rect, const float* background,
           const Pixels& pixels, cuda::StreamView stream);

/// d loss / d pixel, each (h, w, ...) as in Pixels, or none for 0; depth is there where Extras ask
/// for it.
struct PixelGradients {
  const float *image, *alpha, *depth;
};

/// What blend_backward() computes besides the gradients of mean, conic, opacity and colour.
struct Extras {
  bool depth;    // gradients by depth
  bool absgrad;  // SplatGradient::abs_x and abs_y (AbsGS, Ye et al. 2024)
};

/// Floats of one slot.
GS_RASTER_HD constexpr int slot_width(const Extras& extras) {
  return 9 + (extras.depth ? 1 : 0) + (extras.absgrad ? 2 : 0);
}

/// Where the gradients of n splats are. Device memory.
struct SplatGradients {
  const SplatGradient* records = nullptr;  // (n,), or none:
  const float* slots = nullptr;  // the first slot of each splat, all of one width, holds its sums
  Extras extras = {};
  const std::uint32_t* firsts = nullptr;
  const std::uint32_t* counts = nullptr;  // (n,) both; the gradient of a splat without slots is 0
};

/// Gradients of splats. Every instance's go to its slot, and each splat's slots are summed in an
/// order that depends on their number alone: the result has the same bits on every run.
///
/// splats, lists, rect, background: as for blend(), which filled transmittance and last of
/// `pixels`. slots: (lists.room, slot_width) workspace. gradients: (n,), added to where `add`, else
/// written; none: the sums stay in the first slot of each splat.
void blend_backward(const Splat* splats, std::int64_t n, const TileLists& lists, const Rect& rect,
                    const float* background, const Pixels& pixels, const PixelGradients& of_pixels,
                    const Extras& extras, float* slots, SplatGradient* gradients, bool add,
                    cuda::StreamView stream);

}  // namespace gs::raster
