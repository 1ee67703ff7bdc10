// SPDX-License-Identifier: Apache-2.0
// Rows of several views in one call each way. As in cuda.cpp, the Python modules allocate and
// check.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/registers.hpp"

#if defined(GS_WITH_CUDA)
#include <vector>

#include "bindings/addresses.hpp"
#include "gs/cuda/check.hpp"
#include "gs/python/gil.hpp"
#include "project_views.hpp"
#endif

namespace gs::raster {

namespace py = pybind11;

#if defined(GS_WITH_CUDA)

using gs::cuda::DeviceGuard;
using gs::cuda::StreamView;
using gs::python::ReleaseGil;

namespace {

/// What one view sees, and where its splats go.
class ViewSplatsAt {
 public:
  ViewSplatsAt(const RowsAt& rows, const ProjectionAt& projection, std::int64_t room,
               Address splats, Address keys, Address radii)
      : view_{rows.rows(), projection.view(), projection.options(),   projection.sh_degree(),
              room,        at<Splat>(splats), at<std::int32_t>(keys), at<std::int32_t>(radii)} {}
  const ViewSplats& view() const { return view_; }

 private:
  ViewSplats view_;
};

/// Gradients of a view's splats, where those of its rows go, and sums of density control.
using ViewGradientsAt = std::tuple<Address, const RowGradientsAt*, StatisticsAt>;

std::vector<ViewSplats> views_of(const std::vector<const ViewSplatsAt*>& views) {
  std::vector<ViewSplats> found;
  found.reserve(views.size());
  for (const ViewSplatsAt* one : views) found.push_back(one->view());
  return found;
}

void project_views_cuda(const std::vector<const ViewSplatsAt*>& views, Address keys, int device,
                        std::uintptr_t stream) {
  const std::vector<ViewSplats> all = views_of(views);
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  project_views(all, at<const std::int32_t>(keys), StreamView::from_handle(stream));
}

void project_views_backward_cuda(const std::vector<const ViewSplatsAt*>& views,
                                 const std::vector<ViewGradientsAt>& gradients, int device,
                                 std::uintptr_t stream) {
  const std::vector<ViewSplats> all = views_of(views);
  std::vector<ViewGradients> of_views;
  of_views.reserve(gradients.size());
  for (std::size_t k = 0; k < gradients.size(); ++k) {
    const auto& [of_splats, out, statistics] = gradients[k];
    of_views.push_back({at<const SplatGradient>(of_splats), out->gradients(),
                        statistics_of(statistics, reinterpret_cast<Address>(all[k].radii))});
  }
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  project_views_backward(all, of_views, StreamView::from_handle(stream));
}

}  // namespace

void register_views(py::module_& module) {
  py::class_<ViewSplatsAt>(module, "ViewSplatsAt", py::module_local())
      .def(py::init<const RowsAt&, const ProjectionAt&, std::int64_t, Address, Address, Address>(),
           py::arg("rows"), py::arg("projection"), py::arg("room"), py::arg("splats"),
           py::arg("keys"), py::arg("radii"));
  module.def("project_views_cuda", &project_views_cuda, py::arg("views"), py::arg("keys"),
             py::arg("device"), py::arg("stream"));
  module.def("project_views_backward_cuda", &project_views_backward_cuda, py::arg("views"),
             py::arg("gradients"), py::arg("device"), py::arg("stream"));
}

#else

void register_views(py::module_&) {}

#endif

}  // namespace gs::raster
