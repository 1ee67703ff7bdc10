// SPDX-License-Identifier: Apache-2.0
// Arguments that several bound functions take.
#pragma once

#include <optional>
#include <vector>

#include "gs/error.hpp"
#include "gs/python/array.hpp"
#include "row_test.hpp"

namespace gs {
class ThreadPool;
}

namespace gs::cull {

/// The module's threads.
ThreadPool& pool();

/// Checked arrays of one call's Gaussians; keeps them alive. Destroy with the GIL held.
class GeometryArrays {
 public:
  /// means (N, 3), scales (N, 3), quats (N, 4), opacities (N,) or None: float32, contiguous, all on
  /// the device of the means.
  GeometryArrays(pybind11::handle means, pybind11::handle scales, pybind11::handle quats,
                 pybind11::handle opacities);

  std::int64_t n_rows() const { return means_.size(0); }
  int device() const { return means_.device(); }
  Geometry view() const { return view_; }

 private:
  gs::python::Array means_, scales_, quats_;
  std::optional<gs::python::Array> opacities_;
  Geometry view_;
};

/// The camera of every view: viewmats (B, 4, 4), Ks (B, 3, 3), sizes (B, 6) float32 on the CPU. Throws
/// gs::Error naming the view for a pose that is not finite or singular intrinsics.
std::vector<Camera> host_cameras(pybind11::handle viewmats, pybind11::handle Ks,
                                 pybind11::handle sizes, const Options& options);

/// Throws gs::Error for what make_camera() found in a view.
void throw_fault(CameraFault fault, std::int64_t view);

}  // namespace gs::cull
