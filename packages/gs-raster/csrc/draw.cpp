// SPDX-License-Identifier: Apache-2.0
#include "draw.hpp"

#include "cutter.hpp"
#include "gs/cuda/check.hpp"

namespace gs::raster {

namespace {

/// What a drawing keeps. The Python module finds the first three arrays by itself.
struct Kept {
  Splat* splats;
  std::int32_t* radii;
  float* transmittance;
  TileLists lists;
  std::int32_t* last;

  Kept(Cutter& cutter, std::int64_t n, std::int64_t room, const Rect& rect) {
    const std::int64_t n_tiles = Grid(rect).n_tiles();
    const std::int64_t n_pixels = static_cast<std::int64_t>(rect.width()) * rect.height();
    splats = cutter.take<Splat>(n);
    radii = cutter.take<std::int32_t>(2 * n);
    transmittance = cutter.take<float>(n_pixels);
    lists.room = room;
    lists.begins = cutter.take<std::uint32_t>(n_tiles + 1);
    lists.splats = cutter.take<std::int32_t>(room);
    lists.slots = cutter.take<std::int32_t>(room);
    lists.firsts = cutter.take<std::uint32_t>(n);
    lists.counts = cutter.take<std::uint32_t>(n);
    last = cutter.take<std::int32_t>(n_pixels);
  }
};

Kept cut_kept(const Memory& drawing, const Scene& scene, std::int64_t room) {
  Cutter cutter(drawing.data);
  const Kept kept(cutter, scene.rows.n, room, scene.rect);
  cutter.check(drawing.n_bytes);
  return kept;
}

}  // namespace

std::size_t drawing_bytes(std::int64_t n_rows, std::int64_t room, const Rect& rect) {
  Cutter cutter;
  Kept(cutter, n_rows, room, rect);
  return cutter.used();
}

std::size_t draw_scratch_bytes(std::int64_t n_rows, std::int64_t room, const Rect& rect) {
  return ViewSort(n_rows, room, rect).workspace_bytes();
}

std::size_t draw_backward_scratch_bytes(std::int64_t room, const Extras& extras) {
  Cutter cutter;
  cutter.take<float>(room * slot_width(extras));
  return cutter.used();
}

void draw(const Scene& scene, std::int64_t room, const Report& report, float* image, float* depth,
          const Memory& drawing, const Memory& scratch, GraphCache* cache,
          cuda::StreamView stream) {
  const Kept kept = cut_kept(drawing, scene, room);
  const ViewSort sort(scene.rows.n, room, scene.rect);
  const SortJob job{scene.rows.n, kept.splats, scene.keys, scene.rect, nullptr, kept.lists, report};
  project(scene.rows, scene.view, scene.options, scene.sh_degree, kept.splats, kept.radii,
          sort.keys_in(scratch.data, scratch.n_bytes, job), stream);
  sort.run(scene.keys.keys != nullptr, scratch.data, scratch.n_bytes, cache, stream);
  const Pixels pixels{image, nullptr, depth, kept.transmittance, kept.last};
  blend(kept.splats, kept.lists, scene.rect, scene.background, pixels, stream);
}

void draw_backward(const Scene& scene, std::int64_t room, const Memory& drawing,
                   const PixelGradients& of_pixels, const Extras& extras, SplatGradient* of_splats,
                   const RowGradients& out, Statistics statistics, const Memory& scratch,
                   cuda::StreamView stream) {
  const Kept kept = cut_kept(drawing, scene, room);
  Cutter cutter(scratch.data);
  float* const slots = cutter.take<float>(room * slot_width(extras));
  cutter.check(scratch.n_bytes);
  const Pixels pixels{nullptr, nullptr, nullptr, kept.transmittance, kept.last};
  blend_backward(kept.splats, scene.rows.n, kept.lists, scene.rect, scene.background, pixels,
                 of_pixels, extras, slots, of_splats, false, stream);
  statistics.radii = kept.radii;
  const SplatGradients gradients{of_splats, slots, extras, kept.lists.firsts, kept.lists.counts};
  project_backward(scene.rows, scene.view, scene.options, scene.sh_degree, kept.splats, gradients,
                   out, statistics, stream);
}

}  // namespace gs::raster
