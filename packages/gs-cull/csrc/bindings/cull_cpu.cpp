// SPDX-License-Identifier: Apache-2.0
#include "cull_cpu.hpp"

#include <pybind11/numpy.h>

#include "bindings/arguments.hpp"
#include "bindings/registers.hpp"
#include "gs/thread_pool.hpp"

namespace gs::cull {

namespace py = pybind11;
using gs::python::Array;

namespace {

py::tuple cull_cpu(py::handle means, py::handle scales, py::handle quats, py::handle opacities,
                   py::handle viewmats, py::handle Ks, py::handle sizes, const Options& options) {
  const GeometryArrays rows(means, scales, quats, opacities);
  GS_CHECK(rows.device() == -1, "means must be on the CPU, got a CUDA array");
  const std::vector<Camera> cameras = host_cameras(viewmats, Ks, sizes, options);
  const auto n_views = static_cast<int>(cameras.size());
  std::vector<Run> runs;
  if (rows.n_rows() > 0)
    runs.push_back({nullptr, 0, 0, static_cast<std::int32_t>(rows.n_rows()), nullptr});
  std::vector<Piece> pieces;
  {
    py::gil_scoped_release unlocked;
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
    py::gil_scoped_release unlocked;
    n_not_finite = join_pieces(pool(), pieces, true, rows.n_rows(), n_views, id, word, count);
  }
  return py::make_tuple(ids, mask, counts, n_not_finite);
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
        return Options{near_plane, far_plane,   eps2d,      radius_clip, model,
                       activated,  antialiased, move_means, move_scales, move_quats,
                       move_opacities};
      }));
}

void register_cull_cpu(py::module_& module) { module.def("cull_cpu", &cull_cpu); }

}  // namespace gs::cull
