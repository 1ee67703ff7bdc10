// SPDX-License-Identifier: Apache-2.0
// A view from tables to pixels, and gradients back to tables, in one call each. The host waits for
// no count: instances have room that the caller chose, and the device says where it was too little.
#pragma once

#include "blend.hpp"
#include "project.hpp"

namespace gs::raster {

/// What is drawn, and how.
struct Scene {
  Rows rows;
  Keys keys;
  View view;
  Options options;
  int sh_degree;
  Rect rect;                // of the view
  const float* background;  // (3,) device, or none for black
  bool has_radii;           // whether half extents are kept, which Statistics read
};

/// Splats that were projected elsewhere, and how they are drawn.
struct SplatScene {
  std::int64_t n;
  const Splat* splats;  // (n,)
  Keys keys;
  Rect rect;                // of the view
  const float* background;  // (3,) device, or none for black
};

/// Bytes of splats and tile lists, which a drawing keeps for its gradient.
std::size_t lists_bytes(std::int64_t n_rows, std::int64_t room, const Rect& rect, bool has_radii);

/// Bytes of the tile lists of splats, likewise.
std::size_t lists_bytes(std::int64_t n_splats, std::int64_t room, const Rect& rect);

/// Bytes of what a drawing keeps of its pixels for its gradient.
std::size_t pixels_bytes(const Rect& rect);

/// Bytes that draw() needs while splats are sorted.
std::size_t draw_scratch_bytes(std::int64_t n_rows, std::int64_t room, const Rect& rect);

/// Bytes that draw_backward() needs while it runs.
std::size_t draw_backward_scratch_bytes(std::int64_t room, const Extras& extras);

/// Memory of the device, and its bytes.
struct Memory {
  void* data;
  std::size_t n_bytes;
};

/// What draw() leaves to draw_backward().
struct Drawing {
  Memory lists, pixels;
};

/// Draws a rectangle of a view: project(), ViewSort and blend().
///
/// image (h, w, 3), and depth (h, w) or none. Pixels, image and depth are written when scratch is
/// not needed any more, and may lie there.
/// Where there are more than `room` instances, the image is the background; see Report.
/// cache: of graphs, see ViewSort; or none.
/// Enqueued on `stream` of the current device; does not synchronise. Throws gs::CudaError.
void draw(const Scene& scene, std::int64_t room, const Report& report, float* image, float* depth,
          const Drawing& drawing, const Memory& scratch, GraphCache* cache,
          cuda::StreamView stream);

/// Draws a rectangle of a view whose splats are there: ViewSort and blend(). Otherwise as above.
void draw(const SplatScene& scene, std::int64_t room, const Report& report, float* image,
          float* depth, const Drawing& drawing, const Memory& scratch, GraphCache* cache,
          cuda::StreamView stream);

/// Gradients of a drawing's rows: blend_backward() and project_backward().
///
/// scene, room, drawing: as for draw(). of_splats: (n,), filled, or none.
void draw_backward(const Scene& scene, std::int64_t room, const Drawing& drawing,
                   const PixelGradients& of_pixels, const Extras& extras, SplatGradient* of_splats,
                   const RowGradients& out, Statistics statistics, const Memory& scratch,
                   cuda::StreamView stream);

/// Gradients of a drawing's splats: blend_backward(). gradients: (n,), written.
void draw_backward(const SplatScene& scene, std::int64_t room, const Drawing& drawing,
                   const PixelGradients& of_pixels, const Extras& extras, SplatGradient* gradients,
                   const Memory& scratch, cuda::StreamView stream);

}  // namespace gs::raster
