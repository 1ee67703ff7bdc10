// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "bindings/arguments.hpp"
#include "bindings/registers.hpp"
#include "cull_cpu.hpp"
#include "gs/python/gil.hpp"
#include "gs/thread_pool.hpp"
#include "pair_counts.hpp"

namespace gs::cull {

namespace py = pybind11;
using gs::python::Array;
using gs::python::kAny;
using gs::python::ReleaseGil;

namespace {

std::vector<Run> runs_of(const BlockArguments& blocks, int n_words) {
  std::vector<Run> runs;
  for (std::int64_t slot = 0; slot < blocks.n_resident(); ++slot) {
    const std::int64_t block =
        blocks.block_in_slot() != nullptr ? blocks.block_in_slot()[slot] : slot;
    if (block < 0) continue;
    const std::uint32_t* views = blocks.views() + block * n_words;
    if (std::all_of(views, views + n_words, [](std::uint32_t w) { return w == 0; })) continue;
    const std::int64_t first_id = block * blocks.block_size();
    const auto n = static_cast<std::int32_t>(
        std::min<std::int64_t>(blocks.block_size(), blocks.n_rows() - first_id));
    const std::int32_t* rows = blocks.order() != nullptr ? blocks.order() + first_id : nullptr;
    runs.push_back({rows, slot * blocks.block_size(), first_id, n, views});
  }
  return runs;
}

/// Returns ids, mask, counts and the rows looked at that are not finite.
py::tuple cull_cpu(py::handle means, py::handle scales, py::handle quats, py::handle opacities,
                   py::handle viewmats, py::handle Ks, py::handle sizes, const Options& options,
                   const std::optional<py::tuple>& block_parts) {
  const GeometryArrays rows(means, scales, quats, opacities);
  const std::vector<Camera> cameras = host_cameras(viewmats, Ks, sizes, options);
  const auto n_views = static_cast<int>(cameras.size());
  std::optional<BlockArguments> blocks;
  std::vector<Run> runs;
  std::int64_t n_rows = rows.n_rows();
  bool sorted = true;
  if (block_parts) {
    blocks.emplace(*block_parts, n_views);
    runs = runs_of(*blocks, (n_views + 31) / 32);
    n_rows = blocks->n_rows();
    sorted = blocks->order() == nullptr && blocks->block_in_slot() == nullptr;
  } else if (n_rows > 0) {
    runs.push_back({nullptr, 0, 0, static_cast<std::int32_t>(n_rows), nullptr});
  }
  std::vector<Piece> pieces;
  {
    const ReleaseGil unlocked;
    pieces = cull_runs(pool(), rows.view(), runs, cameras, options);
  }
  const std::int64_t n = total_visible(pieces), words = (n_views + 31) / 32;
  py::array_t<std::int32_t> ids(n);
  py::array_t<std::uint32_t> mask({n, words});
  py::array_t<std::int32_t> counts(n_views);
  std::int32_t* const id = ids.mutable_data();
  std::uint32_t* const word = mask.mutable_data();
  std::int32_t* const count = counts.mutable_data();
  std::int64_t n_not_finite = 0;
  {
    const ReleaseGil unlocked;
    n_not_finite = join_pieces(pool(), pieces, sorted, n_rows, n_views, id, word, count);
  }
  return py::make_tuple(ids, mask, counts, n_not_finite);
}

/// Returns boxes (n, 4) of the rows ids in the one view given.
py::array_t<float> boxes_cpu(py::handle means, py::handle scales, py::handle quats,
                             py::handle opacities, py::handle viewmats, py::handle Ks,
                             py::handle sizes, const Options& options, py::handle ids) {
  const GeometryArrays rows(means, scales, quats, opacities);
  const std::vector<Camera> cameras = host_cameras(viewmats, Ks, sizes, options);
  GS_CHECK(cameras.size() == 1, "viewmats must hold one view, got ", cameras.size());
  const Array wanted(ids, "ids");
  const std::int32_t* id = wanted.shape({kAny}).contiguous().on(-1).data<const std::int32_t>();
  const std::int64_t n = wanted.size(0);
  py::array_t<float> boxes({n, std::int64_t{4}});
  float* const out = boxes.mutable_data();
  const ReleaseGil unlocked;
  box_rows(pool(), rows.view(), id, n, cameras[0], options, out);
  return boxes;
}

/// Returns words (blocks, ceil(B / 32)).
py::array_t<std::uint32_t> views_of_blocks_cpu(const py::tuple& bounds, py::handle viewmats,
                                               py::handle Ks, py::handle sizes,
                                               const Options& options) {
  const BoundsArguments arrays(bounds);
  const std::vector<Camera> cameras = host_cameras(viewmats, Ks, sizes, options);
  const auto n_words = static_cast<std::int64_t>((cameras.size() + 31) / 32);
  py::array_t<std::uint32_t> words({arrays.size(), n_words});
  std::uint32_t* const out = words.mutable_data();
  const ReleaseGil unlocked;
  views_of_blocks(pool(), arrays.view(), arrays.size(), cameras, options, out);
  return words;
}

/// Throws gs::RangeError where a block has no place in the bounds, or its rows none in the arrays.
void check_fitted(const BlockingArguments& which, std::int64_t n_stored, std::int64_t n_blocks) {
  const Blocking& all = which.view();
  for (std::int64_t k = 0; k < which.size(); ++k) {
    const std::int64_t block = which.blocks()[k], begin = block * all.size;
    GS_CHECK_AS(RangeError, block >= 0 && block < n_blocks, "blocks must be from 0 to ",
                n_blocks - 1, ", got ", block);
    const std::int64_t count = std::min<std::int64_t>(all.size, all.n_rows - begin);
    const std::int64_t start = std::int64_t{which.stored()[k]} * all.size;
    const bool is_there =
        all.order != nullptr ? all.n_rows <= n_stored : start >= 0 && start + count <= n_stored;
    GS_CHECK_AS(RangeError, is_there, "means must hold the rows of block ", block, ", got ",
                n_stored, " rows");
  }
}

void fit_blocks_cpu(py::handle means, py::handle scales, py::handle quats,
                    const py::tuple& blocking, const Options& options, const py::tuple& bounds) {
  const GeometryArrays rows(means, scales, quats, py::none());
  const BlockingArguments which(blocking);
  const BoundsArguments arrays(bounds);
  check_fitted(which, rows.n_rows(), arrays.size());
  const ReleaseGil unlocked;
  fit_blocks(pool(), rows.view(), which.view(), which.blocks(), which.stored(), which.size(),
             options, arrays.view());
}

/// Returns order (n,). cube: low corner and cells per unit.
py::array_t<std::int32_t> morton_order_cpu(py::handle means, const std::array<double, 4>& cube) {
  const Array points(means, "means");
  const float* mean = points.shape({kAny, 3}).contiguous().on(-1).data<const float>();
  const std::int64_t n = points.size(0);
  py::array_t<std::int32_t> order(n);
  std::int32_t* const out = order.mutable_data();
  const ReleaseGil unlocked;
  morton_order(pool(), mean, n, {{cube[0], cube[1], cube[2]}, cube[3]}, out);
  return order;
}

/// Returns (B, B) rows that both views see.
py::array_t<std::int64_t> pair_counts_cpu(py::handle mask, int n_views) {
  const Array in(mask, "mask");
  const std::uint32_t* words =
      in.shape({kAny, (n_views + 31) / 32}).contiguous().on(-1).data<const std::uint32_t>();
  const std::int64_t n = in.size(0);
  py::array_t<std::int64_t> together({n_views, n_views});
  std::int64_t* const out = together.mutable_data();
  const ReleaseGil unlocked;
  check_stray_bits(words, n, n_views);
  pair_counts(pool(), words, n, n_views, out);
  return together;
}

}  // namespace

void register_options(py::module_& module) {
  py::enum_<CameraModel>(module, "CameraModel", py::module_local())
      .value("pinhole", CameraModel::kPinhole)
      .value("ortho", CameraModel::kOrtho)
      .value("fisheye", CameraModel::kFisheye);
  py::class_<Options>(module, "Options", py::module_local())
      .def(py::init([](float near_plane, float far_plane, float eps2d, float radius_clip,
                       CameraModel model, bool activated, bool antialiased, float move_means,
                       float move_scales, float move_quats, float move_opacities) {
             return Options{near_plane,  far_plane,  eps2d,         radius_clip,
                            model,       activated,  antialiased,   move_means,
                            move_scales, move_quats, move_opacities};
           }),
           py::arg("near_plane"), py::arg("far_plane"), py::arg("eps2d"), py::arg("radius_clip"),
           py::arg("model"), py::arg("activated"), py::arg("antialiased"), py::arg("move_means"),
           py::arg("move_scales"), py::arg("move_quats"), py::arg("move_opacities"));
}

void register_cpu(py::module_& module) {
  module.def("cull_cpu", &cull_cpu, py::arg("means"), py::arg("scales"), py::arg("quats"),
             py::arg("opacities"), py::arg("viewmats"), py::arg("Ks"), py::arg("sizes"),
             py::arg("options"), py::arg("blocks"));
  module.def("boxes_cpu", &boxes_cpu, py::arg("means"), py::arg("scales"), py::arg("quats"),
             py::arg("opacities"), py::arg("viewmats"), py::arg("Ks"), py::arg("sizes"),
             py::arg("options"), py::arg("ids"));
  module.def("views_of_blocks_cpu", &views_of_blocks_cpu, py::arg("bounds"), py::arg("viewmats"),
             py::arg("Ks"), py::arg("sizes"), py::arg("options"));
  module.def("fit_blocks_cpu", &fit_blocks_cpu, py::arg("means"), py::arg("scales"),
             py::arg("quats"), py::arg("blocking"), py::arg("options"), py::arg("bounds"));
  module.def("morton_order_cpu", &morton_order_cpu, py::arg("means"), py::arg("cube"));
  module.def("pair_counts_cpu", &pair_counts_cpu, py::arg("mask"), py::arg("n_views"));
}

}  // namespace gs::cull
