// SPDX-License-Identifier: Apache-2.0
// The device functions, one by one: gs_cull/device.py allocates what they need and puts them
// together. Workspaces are int32.
#include <pybind11/stl.h>

#include <array>

#include "bindings/arguments.hpp"
#include "bindings/registers.hpp"

#if defined(GS_WITH_CUDA)
#include "blocks_cuda.hpp"
#include "cull_cuda.hpp"
#include "gs/cuda/check.hpp"
#include "pair_counts_cuda.hpp"
#endif

namespace gs::cull {

namespace py = pybind11;

#if defined(GS_WITH_CUDA)

using gs::cuda::as_stream;
using gs::cuda::DeviceGuard;
using gs::python::Array;
using gs::python::kAny;

namespace {

/// Totals, then the cameras: the head of every call's workspace, zeroed by the caller.
class Views {
 public:
  static std::int64_t words(std::int64_t n_views) {
    const auto cameras = n_views * static_cast<std::int64_t>(sizeof(Camera) / 4);
    return kTotals + (cameras + 3) / 4 * 4;
  }

  Views(py::handle workspace, int n_views) : array_(workspace, "views"), n_views_(n_views) {
    base_ = array_.shape({words(n_views)}).contiguous().data<std::int32_t>();
  }

  int n_views() const { return n_views_; }
  int device() const { return array_.device(); }
  Totals* totals() const { return reinterpret_cast<Totals*>(base_); }
  Camera* cameras() const { return reinterpret_cast<Camera*>(base_ + kTotals); }

 private:
  static constexpr std::int64_t kTotals = sizeof(Totals) / 4;
  Array array_;
  int n_views_;
  std::int32_t* base_;
};

Layout layout_of(const std::optional<BlockArguments>& blocks, std::int64_t n_rows) {
  if (!blocks) {
    // Small blocks fill the device even when the scene is small.
    constexpr std::int32_t kBlock = 256;
    return {n_rows, kBlock, (n_rows + kBlock - 1) / kBlock, nullptr, nullptr, nullptr, nullptr};
  }
  return {blocks->n_rows(),        blocks->block_size(),    blocks->n_resident(), blocks->order(),
          blocks->block_in_slot(), blocks->slot_of_block(), blocks->views()};
}

std::optional<BlockArguments> blocks_of(const std::optional<py::tuple>& parts, const Views& views) {
  std::optional<BlockArguments> blocks;
  if (parts) blocks.emplace(*parts, views.n_views(), views.device());
  return blocks;
}

/// Words of a marks workspace (a ticket and a bit per row), which must be zero.
std::int64_t mark_words(std::int64_t n_rows) { return 4 + (n_rows + 31) / 32; }

struct Marks {
  Marks(const Array& array, std::int64_t n_rows, int device) {
    auto* base = array.shape({mark_words(n_rows)}).contiguous().on(device).data<std::int32_t>();
    ticket = reinterpret_cast<std::uint32_t*>(base);
    bits = ticket + 4;
  }
  std::uint32_t *ticket, *bits;
};

void prepare_cuda(py::handle viewmats, py::handle Ks, py::handle sizes,
                  const std::optional<std::array<float, 6>>& one_size, const Options& options,
                  py::handle workspace, std::uintptr_t stream) {
  const Array poses(viewmats, "viewmats"), intrinsics(Ks, "Ks");
  poses.shape({kAny, 4, 4}).contiguous();
  const auto n_views = static_cast<int>(poses.size(0));
  const Views views(workspace, n_views);
  const int device = views.device();
  const float* pose = poses.on(device).data<const float>();
  const float* K = intrinsics.shape({n_views, 3, 3}).contiguous().on(device).data<const float>();
  std::optional<Array> extents;
  const float* size = nullptr;
  const std::array<float, 6> shared_size = one_size.value_or(std::array<float, 6>{});
  if (!sizes.is_none()) {
    extents.emplace(sizes, "sizes");
    size = extents->shape({n_views, 6}).contiguous().on(device).data<const float>();
  }
  py::gil_scoped_release unlocked;
  const DeviceGuard guard(device);
  prepare_cameras(pose, K, size, shared_size.data(), n_views, options, views.cameras(),
                  views.totals(), as_stream(stream));
}

void mark_cuda(py::handle means, py::handle scales, py::handle quats, py::handle opacities,
               py::handle workspace, int n_views, const Options& options,
               const std::optional<py::tuple>& block_parts, py::handle marks,
               py::handle chunk_offsets, std::uintptr_t stream) {
  const GeometryArrays rows(means, scales, quats, opacities);
  const Views views(workspace, n_views);
  const int device = rows.device();
  const std::optional<BlockArguments> blocks = blocks_of(block_parts, views);
  const Layout layout = layout_of(blocks, rows.n_rows());
  const Array mark_array(marks, "marks"), chunks(chunk_offsets, "chunk_offsets");
  const Marks at(mark_array, layout.n_rows, device);
  std::int32_t* const offsets =
      chunks.shape({visible_chunks(layout.n_rows)}).contiguous().on(device).data<std::int32_t>();
  py::gil_scoped_release unlocked;
  const DeviceGuard guard(device);
  mark_visible(rows.view(), layout, views.cameras(), n_views, options, at.bits, offsets, at.ticket,
               views.totals(), as_stream(stream));
}

void write_ids_cuda(py::handle marks, py::handle chunk_offsets, std::int64_t n_rows, py::handle ids,
                    py::handle mask, py::handle counts, std::uintptr_t stream) {
  const Array out(ids, "ids"), mark_array(marks, "marks"), chunks(chunk_offsets, "chunk_offsets");
  std::int32_t* const id = out.shape({kAny}).contiguous().data<std::int32_t>();
  const std::int64_t n = out.size(0);
  const int device = out.device();
  const Marks at(mark_array, n_rows, device);
  const std::int32_t* offsets =
      chunks.shape({visible_chunks(n_rows)}).contiguous().on(device).data<const std::int32_t>();
  std::optional<Array> words, totals;
  std::uint32_t* word = nullptr;
  std::int32_t* count = nullptr;
  if (!mask.is_none()) {
    words.emplace(mask, "mask");
    totals.emplace(counts, "counts");
    word = reinterpret_cast<std::uint32_t*>(
        words->shape({n, 1}).contiguous().on(device).data<std::int32_t>());
    count = totals->shape({1}).contiguous().on(device).data<std::int32_t>();
  }
  py::gil_scoped_release unlocked;
  const DeviceGuard guard(device);
  write_ids(at.bits, offsets, n_rows, n, id, word, count, as_stream(stream));
}

void write_mask_cuda(py::handle means, py::handle scales, py::handle quats, py::handle opacities,
                     py::handle workspace, int n_views, const Options& options,
                     const std::optional<py::tuple>& block_parts, py::handle ids, py::handle mask,
                     py::handle counts, std::uintptr_t stream) {
  const GeometryArrays rows(means, scales, quats, opacities);
  const Views views(workspace, n_views);
  const int device = rows.device();
  const std::optional<BlockArguments> blocks = blocks_of(block_parts, views);
  const Layout layout = layout_of(blocks, rows.n_rows());
  const Array in(ids, "ids"), words(mask, "mask"), totals(counts, "counts");
  const std::int32_t* id = in.shape({kAny}).contiguous().on(device).data<const std::int32_t>();
  const std::int64_t n = in.size(0);
  auto* const word = reinterpret_cast<std::uint32_t*>(
      words.shape({n, (n_views + 31) / 32}).contiguous().on(device).data<std::int32_t>());
  std::int32_t* const count = totals.shape({n_views}).contiguous().on(device).data<std::int32_t>();
  py::gil_scoped_release unlocked;
  const DeviceGuard guard(device);
  write_mask(rows.view(), layout, views.cameras(), n_views, options, id, n, word, count,
             as_stream(stream));
}

void boxes_cuda(py::handle means, py::handle scales, py::handle quats, py::handle opacities,
                py::handle workspace, const Options& options, py::handle ids, py::handle boxes,
                std::uintptr_t stream) {
  const GeometryArrays rows(means, scales, quats, opacities);
  const Views views(workspace, 1);
  const int device = rows.device();
  const Array in(ids, "ids"), out(boxes, "boxes");
  const std::int32_t* id = in.shape({kAny}).contiguous().on(device).data<const std::int32_t>();
  float* const box = out.shape({in.size(0), 4}).contiguous().on(device).data<float>();
  const std::int64_t n = in.size(0);
  py::gil_scoped_release unlocked;
  const DeviceGuard guard(device);
  box_rows(rows.view(), id, n, views.cameras(), options, box, as_stream(stream));
}

void views_of_blocks_cuda(const py::tuple& bounds, py::handle workspace, int n_views,
                          const Options& options, py::handle words, std::uintptr_t stream) {
  const Views views(workspace, n_views);
  const int device = views.device();
  const BoundsArguments arrays(bounds, device);
  const Array out(words, "words");
  auto* const word = reinterpret_cast<std::uint32_t*>(
      out.shape({arrays.size(), (n_views + 31) / 32}).contiguous().on(device).data<std::int32_t>());
  py::gil_scoped_release unlocked;
  const DeviceGuard guard(device);
  views_of_blocks(arrays.view(), arrays.size(), views.cameras(), n_views, options, word,
                  as_stream(stream));
}

void fit_blocks_cuda(py::handle means, py::handle scales, py::handle quats,
                     const py::tuple& blocking, const Options& options, const py::tuple& bounds,
                     std::uintptr_t stream) {
  const GeometryArrays rows(means, scales, quats, py::none());
  const int device = rows.device();
  const BlockingArguments which(blocking, device);
  const BoundsArguments arrays(bounds, device);
  py::gil_scoped_release unlocked;
  const DeviceGuard guard(device);
  fit_blocks(rows.view(), which.view(), which.blocks(), which.stored(), which.size(), options,
             arrays.view(), as_stream(stream));
}

std::int64_t sort_workspace_bytes_cuda(std::int64_t n, int device) {
  const DeviceGuard guard(device);
  return static_cast<std::int64_t>(sort_workspace_bytes(n));
}

int morton_order_cuda(py::handle means, const std::array<double, 4>& cube, py::handle codes,
                      py::handle rows, py::handle workspace, std::uintptr_t stream) {
  const Array points(means, "means"), keys(codes, "codes"), values(rows, "rows"),
      scratch(workspace, "workspace");
  const float* mean = points.shape({kAny, 3}).contiguous().data<const float>();
  const std::int64_t n = points.size(0);
  const int device = points.device();
  auto* const code = reinterpret_cast<std::uint64_t*>(
      keys.shape({2, n}).contiguous().on(device).data<std::int64_t>());
  std::int32_t* const row = values.shape({2, n}).contiguous().on(device).data<std::int32_t>();
  auto* const bytes = scratch.shape({kAny}).contiguous().on(device).data<std::uint8_t>();
  const auto n_bytes = static_cast<std::size_t>(scratch.size(0));
  py::gil_scoped_release unlocked;
  const DeviceGuard guard(device);
  morton_codes(mean, n, {{cube[0], cube[1], cube[2]}, cube[3]}, code, row, as_stream(stream));
  return sort_rows(code, row, n, bytes, n_bytes, as_stream(stream));
}

void pair_counts_cuda(py::handle mask, int n_views, py::handle together, std::uintptr_t stream) {
  const Array in(mask, "mask"), out(together, "together");
  const std::int32_t* words =
      in.shape({kAny, (n_views + 31) / 32}).contiguous().data<const std::int32_t>();
  const std::int64_t n = in.size(0);
  auto* const sums = reinterpret_cast<unsigned long long*>(
      out.shape({n_views, n_views}).contiguous().on(in.device()).data<std::int64_t>());
  py::gil_scoped_release unlocked;
  const DeviceGuard guard(in.device());
  pair_counts(reinterpret_cast<const std::uint32_t*>(words), n, n_views, sums, as_stream(stream));
}

}  // namespace

void register_cuda(py::module_& module) {
  module.def("view_words", &Views::words);
  module.def("mark_words", &mark_words);
  module.def("visible_chunks", &visible_chunks);
  module.def("prepare_cuda", &prepare_cuda);
  module.def("mark_cuda", &mark_cuda);
  module.def("write_ids_cuda", &write_ids_cuda);
  module.def("write_mask_cuda", &write_mask_cuda);
  module.def("boxes_cuda", &boxes_cuda);
  module.def("views_of_blocks_cuda", &views_of_blocks_cuda);
  module.def("fit_blocks_cuda", &fit_blocks_cuda);
  module.def("sort_workspace_bytes_cuda", &sort_workspace_bytes_cuda);
  module.def("morton_order_cuda", &morton_order_cuda);
  module.def("pair_counts_cuda", &pair_counts_cuda);
}

#else

void register_cuda(py::module_&) {}

#endif

}  // namespace gs::cull
