// SPDX-License-Identifier: Apache-2.0
#include "bindings/arguments.hpp"

#include "gs/thread_pool.hpp"

namespace gs::cull {

namespace py = pybind11;
using gs::python::Array;
using gs::python::kAny;

ThreadPool& pool() {
  static ThreadPool threads;
  return threads;
}

GeometryArrays::GeometryArrays(py::handle means, py::handle scales, py::handle quats,
                               py::handle opacities)
    : means_(means, "means"), scales_(scales, "scales"), quats_(quats, "quats") {
  view_.means = means_.shape({kAny, 3}).contiguous().data<const float>();
  const std::int64_t n = means_.size(0);
  GS_CHECK(n < INT32_MAX, "means must have fewer than 2^31 - 1 rows, got ", n);
  view_.scales = scales_.shape({n, 3}).contiguous().on(device()).data<const float>();
  view_.quats = quats_.shape({n, 4}).contiguous().on(device()).data<const float>();
  view_.opacities = nullptr;
  if (opacities.is_none()) return;
  opacities_.emplace(opacities, "opacities");
  view_.opacities = opacities_->shape({n}).contiguous().on(device()).data<const float>();
}

std::vector<Camera> host_cameras(py::handle viewmats, py::handle Ks, py::handle sizes,
                                 const Options& options) {
  const Array poses(viewmats, "viewmats"), intrinsics(Ks, "Ks"), extents(sizes, "sizes");
  const float* pose = poses.shape({kAny, 4, 4}).contiguous().on(-1).data<const float>();
  const std::int64_t n = poses.size(0);
  const float* K = intrinsics.shape({n, 3, 3}).contiguous().on(-1).data<const float>();
  const float* size = extents.shape({n, 6}).contiguous().on(-1).data<const float>();
  std::vector<Camera> cameras(n);
  for (std::int64_t i = 0; i < n; ++i)
    throw_fault(make_camera(pose + 16 * i, K + 9 * i, size[6 * i], size[6 * i + 1],
                            size + 6 * i + 2, options, &cameras[i]),
                i);
  return cameras;
}

void throw_fault(CameraFault fault, std::int64_t view) {
  GS_CHECK(fault != CameraFault::kPoseNotFinite, "viewmats must be finite, got NaN or Inf in view ",
           view);
  GS_CHECK(fault != CameraFault::kSingularIntrinsics,
           "Ks must have finite entries and focal lengths other than 0, got singular intrinsics in "
           "view ",
           view);
}

}  // namespace gs::cull
