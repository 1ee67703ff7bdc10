// SPDX-License-Identifier: Apache-2.0
#include "draw.hpp"

#include "cutter.hpp"
#include "gs/cuda/check.hpp"

namespace gs::raster {

namespace {

TileLists cut_lists(Cutter& cutter, std::int64_t n, std::int64_t room, const Rect& rect) {
  TileLists lists;
  lists.room = room;
  lists.begins = cutter.take<std::uint32_t>(Grid(rect).n_tiles() + std::int64_t{1});
  lists.splats = cutter.take<std::int32_t>(room);
  lists.slots = cutter.take<std::int32_t>(room);
  lists.firsts = cutter.take<std::uint32_t>(n);
  lists.counts = cutter.take<std::uint32_t>(n);
  return lists;
}

/// What a drawing keeps. The Python modules find the first arrays of both parts by themselves.
struct KeptRows {
  Splat* splats;
  std::int32_t* radii;  // or none
  TileLists lists;

  KeptRows(Cutter& cutter, std::int64_t n, std::int64_t room, const Rect& rect, bool has_radii)
      : splats(cutter.take<Splat>(n)),
        radii(has_radii ? cutter.take<std::int32_t>(2 * n) : nullptr),
        lists(cut_lists(cutter, n, room, rect)) {}
};

struct KeptSplats {
  TileLists lists;

  KeptSplats(Cutter& cutter, std::int64_t n, std::int64_t room, const Rect& rect)
      : lists(cut_lists(cutter, n, room, rect)) {}
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

template <class Lists>
struct Kept : Lists, KeptPixels {
  template <class... Arguments>
  Kept(const Drawing& drawing, std::int64_t room, const Rect& rect, std::int64_t n,
       Arguments... arguments)
      : Kept(Cutter(drawing.lists.data), Cutter(drawing.pixels.data), drawing, room, rect, n,
             arguments...) {}

 private:
  template <class... Arguments>
  Kept(Cutter of_lists, Cutter of_pixels, const Drawing& drawing, std::int64_t room,
       const Rect& rect, std::int64_t n, Arguments... arguments)
      : Lists(of_lists, n, room, rect, arguments...), KeptPixels(of_pixels, rect) {
    of_lists.check(drawing.lists.n_bytes);
    of_pixels.check(drawing.pixels.n_bytes);
  }
};

Kept<KeptRows> kept_of(const Drawing& drawing, const Scene& scene, std::int64_t room) {
  return {drawing, room, scene.rect, scene.rows.n, scene.has_radii};
}

Kept<KeptSplats> kept_of(const Drawing& drawing, const SplatScene& scene, std::int64_t room) {
  return {drawing, room, scene.rect, scene.n};
}

float* cut_slots(const Memory& scratch, std::int64_t room, const Extras& extras) {
  Cutter cutter(scratch.data);
  float* const slots = cutter.take<float>(room * slot_width(extras));
  cutter.check(scratch.n_bytes);
  return slots;
}

}  // namespace

std::size_t lists_bytes(std::int64_t n_rows, std::int64_t room, const Rect& rect, bool has_radii) {
  Cutter cutter;
  KeptRows(cutter, n_rows, room, rect, has_radii);
  return cutter.used();
}

std::size_t lists_bytes(std::int64_t n_splats, std::int64_t room, const Rect& rect) {
  Cutter cutter;
  KeptSplats(cutter, n_splats, room, rect);
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
  const auto kept = kept_of(drawing, scene, room);
  const ViewSort sort(scene.rows.n, room, scene.rect);
  const SortJob job{scene.rows.n, kept.splats, scene.keys, scene.rect, nullptr, kept.lists, report};
  project(scene.rows, scene.view, scene.options, scene.sh_degree, kept.splats, kept.radii,
          sort.keys_in(scratch.data, scratch.n_bytes, job), stream);
  sort.run(scene.keys.keys != nullptr, scratch.data, scratch.n_bytes, cache, stream);
  const Pixels pixels{image, nullptr, depth, kept.transmittance, kept.last};
  blend(kept.splats, kept.lists, scene.rect, scene.background, pixels, stream);
}

void draw(const SplatScene& scene, std::int64_t room, const Report& report, float* image,
          float* depth, const Drawing& drawing, const Memory& scratch, GraphCache* cache,
          cuda::StreamView stream) {
  const auto kept = kept_of(drawing, scene, room);
  const ViewSort sort(scene.n, room, scene.rect);
  const SortJob job{scene.n, scene.splats, scene.keys, scene.rect, nullptr, kept.lists, report};
  sort.put_keys(scratch.data, scratch.n_bytes, job, stream);
  sort.run(scene.keys.keys != nullptr, scratch.data, scratch.n_bytes, cache, stream);
  const Pixels pixels{image, nullptr, depth, kept.transmittance, kept.last};
  blend(scene.splats, kept.lists, scene.rect, scene.background, pixels, stream);
}

void draw_backward(const Scene& scene, std::int64_t room, const Drawing& drawing,
                   const PixelGradients& of_pixels, const Extras& extras, SplatGradient* of_splats,
                   const RowGradients& out, Statistics statistics, const Memory& scratch,
                   cuda::StreamView stream) {
  const auto kept = kept_of(drawing, scene, room);
  float* const slots = cut_slots(scratch, room, extras);
  const Pixels pixels{nullptr, nullptr, nullptr, kept.transmittance, kept.last};
  blend_backward(kept.splats, scene.rows.n, kept.lists, scene.rect, scene.background, pixels,
                 of_pixels, extras, slots, of_splats, false, stream);
  statistics.radii = kept.radii;
  const SplatGradients gradients{of_splats, slots, extras, kept.lists.firsts, kept.lists.counts};
  project_backward(scene.rows, scene.view, scene.options, scene.sh_degree, kept.splats, gradients,
                   out, statistics, stream);
}

void draw_backward(const SplatScene& scene, std::int64_t room, const Drawing& drawing,
                   const PixelGradients& of_pixels, const Extras& extras, SplatGradient* gradients,
                   const Memory& scratch, cuda::StreamView stream) {
  const auto kept = kept_of(drawing, scene, room);
  float* const slots = cut_slots(scratch, room, extras);
  const Pixels pixels{nullptr, nullptr, nullptr, kept.transmittance, kept.last};
  blend_backward(scene.splats, scene.n, kept.lists, scene.rect, scene.background, pixels, of_pixels,
                 extras, slots, gradients, false, stream);
}

}  // namespace gs::raster
