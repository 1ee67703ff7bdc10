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

/// What draw() needs besides; projecting and the three stages of sorting take turns with one
/// workspace.
struct Scratch {
  std::int32_t* order;
  std::uint32_t* ends;
  std::uint64_t* total;
  std::size_t n_bytes;
  void* workspace;

  Scratch(Cutter& cutter, std::int64_t n, std::int64_t room, const Rect& rect) {
    order = cutter.take<std::int32_t>(n);
    ends = cutter.take<std::uint32_t>(n);
    total = cutter.take<std::uint64_t>(1);
    n_bytes = std::max(
        {order_workspace_bytes(n), count_workspace_bytes(n), list_workspace_bytes(room, rect)});
    workspace = cutter.take_bytes(n_bytes);
  }
};

/// What draw_backward() needs besides.
struct BackwardScratch {
  float* slots;
  SplatGradient* of_splats;  // none where the caller has memory for them

  BackwardScratch(Cutter& cutter, std::int64_t n, std::int64_t room, const Extras& extras,
                  bool gives_splats) {
    slots = cutter.take<float>(room * slot_width(extras));
    of_splats = gives_splats ? nullptr : cutter.take<SplatGradient>(n);
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
  Cutter cutter;
  Scratch(cutter, n_rows, room, rect);
  return cutter.used();
}

std::size_t draw_backward_scratch_bytes(std::int64_t n_rows, std::int64_t room,
                                        const Extras& extras, bool gives_splats) {
  Cutter cutter;
  BackwardScratch(cutter, n_rows, room, extras, gives_splats);
  return cutter.used();
}

void draw(const Scene& scene, std::int64_t room, const Report& report, float* image, float* depth,
          const Memory& drawing, const Memory& scratch, cuda::StreamView stream) {
  const Kept kept = cut_kept(drawing, scene, room);
  const std::int64_t n = scene.rows.n;
  Cutter cutter(scratch.data);
  const Scratch used(cutter, n, room, scene.rect);
  cutter.check(scratch.n_bytes);
  if (n == 0) GS_CUDA_TRY(cudaMemsetAsync(used.total, 0, sizeof(*used.total), stream.get()));
  project(scene.rows, scene.view, scene.options, scene.sh_degree, kept.splats, kept.radii,
          depth_keys_in(used.workspace, n, used.total), stream);
  order_by_depth(scene.keys, n, used.order, used.workspace, used.n_bytes, stream);
  count_instances(kept.splats, used.order, n, scene.rect, used.ends, used.total, used.workspace,
                  used.n_bytes, stream);
  list_instances(kept.splats, used.order, n, scene.rect, used.ends, used.total, kept.lists, report,
                 used.workspace, used.n_bytes, stream);
  const Pixels pixels{image, nullptr, depth, kept.transmittance, kept.last};
  blend(kept.splats, kept.lists, scene.rect, scene.background, pixels, stream);
}

void draw_backward(const Scene& scene, std::int64_t room, const Memory& drawing,
                   const PixelGradients& of_pixels, const Extras& extras, SplatGradient* of_splats,
                   const RowGradients& out, Statistics statistics, const Memory& scratch,
                   cuda::StreamView stream) {
  const Kept kept = cut_kept(drawing, scene, room);
  Cutter cutter(scratch.data);
  const BackwardScratch used(cutter, scene.rows.n, room, extras, of_splats != nullptr);
  cutter.check(scratch.n_bytes);
  if (of_splats == nullptr) of_splats = used.of_splats;
  const Pixels pixels{nullptr, nullptr, nullptr, kept.transmittance, kept.last};
  blend_backward(kept.splats, scene.rows.n, kept.lists, scene.rect, scene.background, pixels,
                 of_pixels, extras, used.slots, of_splats, false, stream);
  statistics.radii = kept.radii;
  project_backward(scene.rows, scene.view, scene.options, scene.sh_degree, kept.splats, of_splats,
                   out, statistics, stream);
}

}  // namespace gs::raster
