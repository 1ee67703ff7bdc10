// SPDX-License-Identifier: Apache-2.0
#include "draw.hpp"

#include "cutter.hpp"
#include "gs/cuda/check.hpp"

namespace gs::raster {

namespace {

/// What a drawing keeps. The Python module finds the first arrays of both parts by itself.
struct KeptLists {
  Splat* splats;
  std::int32_t* radii;  // or none
  TileLists lists;

  KeptLists(Cutter& cutter, std::int64_t n, std::int64_t room, const Rect& rect, bool has_radii) {
    splats = cutter.take<Splat>(n);
    radii = has_radii ? cutter.take<std::int32_t>(2 * n) : nullptr;
    lists.room = room;
    lists.begins = cutter.take<std::uint32_t>(Grid(rect).n_tiles() + std::int64_t{1});
    lists.splats = cutter.take<std::int32_t>(room);
    lists.slots = cutter.take<std::int32_t>(room);
    lists.firsts = cutter.take<std::uint32_t>(n);
    lists.counts = cutter.take<std::uint32_t>(n);
  }
};

struct KeptPixels {
  float* transmittance;
  std::int32_t* last;

  KeptPixels(Cutter& cutter, const Rect& rect) {
    const std::int64_t n_pixels = static_cast<std::int64_t>(rect.width()) * rect.height();
    transmittance = cutter.take<float>(n_pixels);
    last = cutter.take<std::int32_t>(n_pixels);
  }
};

struct Kept : KeptLists, KeptPixels {
  Kept(Cutter& of_lists, Cutter& of_pixels, const Scene& scene, std::int64_t room)
      : KeptLists(of_lists, scene.rows.n, room, scene.rect, scene.has_radii),
        KeptPixels(of_pixels, scene.rect) {}
};

Kept cut_kept(const Drawing& drawing, const Scene& scene, std::int64_t room) {
  Cutter of_lists(drawing.lists.data), of_pixels(drawing.pixels.data);
  const Kept kept(of_lists, of_pixels, scene, room);
  of_lists.check(drawing.lists.n_bytes);
  of_pixels.check(drawing.pixels.n_bytes);
  return kept;
}

}  // namespace

std::size_t lists_bytes(std::int64_t n_rows, std::int64_t room, const Rect& rect, bool has_radii) {
  Cutter cutter;
  KeptLists(cutter, n_rows, room, rect, has_radii);
  return cutter.used();
}

std::size_t pixels_bytes(const Rect& rect) {
  Cutter cutter;
  KeptPixels(cutter, rect);
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
          const Drawing& drawing, const Memory& scratch, GraphCache* cache,
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

void draw_backward(const Scene& scene, std::int64_t room, const Drawing& drawing,
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
