// SPDX-License-Identifier: Apache-2.0
// Which rows of an early list a view sees now, on host threads and on a device.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <cstring>

#include "bindings/arguments.hpp"
#include "bindings/registers.hpp"
#include "cull_cpu.hpp"
#include "gs/python/gil.hpp"

#if defined(GS_WITH_CUDA)
#include "bindings/addresses.hpp"
#include "gs/cuda/check.hpp"
#include "mark_cuda.hpp"
#endif

namespace gs::cull {

namespace py = pybind11;
using gs::python::Array;
using gs::python::kAny;
using gs::python::ReleaseGil;

namespace {

/// A list of rows and the views that may see them: ids (U,) and mask (U, words) on the CPU, kept
/// alive. Destroy with the GIL held.
class ListedRows {
 public:
  ListedRows(py::handle ids, py::handle mask, int n_views)
      : ids_array_(ids, "ids"), mask_array_(mask, "mask"), n_views_(n_views) {
    ids_ = ids_array_.shape({kAny}).contiguous().on(-1).data<const std::int32_t>();
    mask_array_.shape({size(), (n_views + 31) / 32}).contiguous().on(-1);
    mask_ = mask_array_.data<const std::uint32_t>();
  }

  std::int64_t size() const { return ids_array_.size(0); }
  const std::int32_t* ids() const { return ids_; }
  const std::uint32_t* mask() const { return mask_; }

  /// Throws gs::RangeError for an id that no row has, gs::Error for a bit that is no view's.
  void check(std::int64_t n_rows) const {
    for (std::int64_t i = 0; i < size(); ++i)
      GS_CHECK_AS(RangeError, ids_[i] >= 0 && ids_[i] < n_rows, "ids must lie in [0, ", n_rows,
                  "), got ", ids_[i]);
    check_stray_bits(mask_, size(), n_views_);
  }

 private:
  Array ids_array_, mask_array_;
  int n_views_;
  const std::int32_t* ids_ = nullptr;
  const std::uint32_t* mask_ = nullptr;
};

/// Returns marks (U,) bool: `out`, or a new array for None.
py::object mark_cpu(py::handle means, py::handle scales, py::handle quats, py::handle opacities,
                    py::handle viewmats, py::handle Ks, py::handle sizes, const Options& options,
                    py::handle ids, py::handle mask, const py::object& out) {
  const GeometryArrays rows(means, scales, quats, opacities);
  const std::vector<Camera> cameras = host_cameras(viewmats, Ks, sizes, options);
  const ListedRows listed(ids, mask, static_cast<int>(cameras.size()));
  const py::object result = out.is_none() ? py::object(py::array_t<bool>(listed.size())) : out;
  const Array marks_array(result, "out");
  marks_array.shape({listed.size()}).contiguous().on(-1).writable();
  bool* const marks = marks_array.data<bool>();
  {
    const ReleaseGil unlocked;
    listed.check(rows.n_rows());
    mark_rows(pool(), rows.view(), listed.ids(), listed.mask(), listed.size(), cameras, options,
              marks);
  }
  return result;
}

/// Throws what mark_cpu() throws for views, ids and mask, which lie on the host.
void check_marking(std::int64_t n_rows, py::handle viewmats, py::handle Ks, py::handle sizes,
                   const Options& options, py::handle ids, py::handle mask) {
  const std::vector<Camera> cameras = host_cameras(viewmats, Ks, sizes, options);
  const ListedRows listed(ids, mask, static_cast<int>(cameras.size()));
  const ReleaseGil unlocked;
  listed.check(n_rows);
}

/// Whether the environment asks for a look at what is trusted on a device.
bool checks_indices() {
  const char* const asked = std::getenv("GS_CHECK_INDEX");
  return asked != nullptr && asked[0] != '\0' && std::strcmp(asked, "0") != 0;
}

#if defined(GS_WITH_CUDA)
void mark_cuda(const RowsAt& rows, const ViewsAt& views, const Options& options, Address ids,
               Address mask, std::int64_t n, Address marks, int device, std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const gs::cuda::DeviceGuard guard(device);
  mark_rows(rows.geometry(), at<const std::int32_t>(ids), at<const std::uint32_t>(mask), n,
            {views.viewmats(), views.Ks(), views.sizes()}, views.n_views(), options,
            at<bool>(marks), gs::cuda::StreamView::from_handle(stream));
}
#endif

}  // namespace

void register_mark(py::module_& module) {
  module.def("mark_cpu", &mark_cpu, py::arg("means"), py::arg("scales"), py::arg("quats"),
             py::arg("opacities"), py::arg("viewmats"), py::arg("Ks"), py::arg("sizes"),
             py::arg("options"), py::arg("ids"), py::arg("mask"), py::arg("out"));
  module.def("checks_indices", &checks_indices);
  module.def("check_marking", &check_marking, py::arg("n_rows"), py::arg("viewmats"), py::arg("Ks"),
             py::arg("sizes"), py::arg("options"), py::arg("ids"), py::arg("mask"));
#if defined(GS_WITH_CUDA)
  module.def("mark_cuda", &mark_cuda, py::arg("rows"), py::arg("views"), py::arg("options"),
             py::arg("ids"), py::arg("mask"), py::arg("n"), py::arg("marks"), py::arg("device"),
             py::arg("stream"));
#endif
}

}  // namespace gs::cull
