// SPDX-License-Identifier: Apache-2.0
// The device functions. gs_cull/device.py allocates what they need and checks every array; here
// arrays are addresses, 0 for one that is not there. Workspaces are int32.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>

#include "bindings/registers.hpp"

#if defined(GS_WITH_CUDA)
#include "bindings/addresses.hpp"
#include "bindings/cuda_cull.hpp"
#include "gs/cuda/check.hpp"
#include "gs/python/gil.hpp"
#include "pair_counts_cuda.hpp"
#endif

namespace gs::cull {

namespace py = pybind11;

#if defined(GS_WITH_CUDA)

using gs::cuda::DeviceGuard;
using gs::cuda::StreamView;
using gs::python::ReleaseGil;

namespace {

void boxes_cuda(const RowsAt& rows, const ViewsAt& views, const Options& options, Address ids,
                std::int64_t n, Address workspace, Address boxes, int device,
                std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  const StreamView on = StreamView::from_handle(stream);
  const ViewWorkspace work(workspace, views.n_views());
  work.prepare(views, options, 0, on);
  box_rows(rows.geometry(), at<const std::int32_t>(ids), n, work.cameras(), options,
           at<float>(boxes), on);
}

/// Throws for a faulty camera.
void views_of_blocks_cuda(const BoundsAt& bounds, const ViewsAt& views, const Options& options,
                          Address workspace, Address host_totals, Address words, int device,
                          std::uintptr_t stream) {
  Totals totals;
  {
    const ReleaseGil unlocked;
    const DeviceGuard guard(device);
    const StreamView on = StreamView::from_handle(stream);
    const ViewWorkspace work(workspace, views.n_views());
    work.prepare(views, options, 0, on);
    views_of_blocks(bounds.arrays(), bounds.n_blocks(), work.cameras(), views.n_views(), options,
                    nullptr, at<std::uint32_t>(words), &work.totals()->n_not_finite, on);
    totals = work.read(at<Totals>(host_totals), on);
  }
  throw_fault(static_cast<CameraFault>(totals.fault), totals.fault_view);
}

void fit_blocks_cuda(const RowsAt& rows, std::int64_t n_rows, std::int32_t block_size,
                     Address order, Address blocks, Address stored, std::int64_t n,
                     const Options& options, const BoundsAt& bounds, int device,
                     std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  const StreamView on = StreamView::from_handle(stream);
  fit_blocks(rows.geometry(), {n_rows, block_size, at<const std::int32_t>(order)},
             at<const std::int32_t>(blocks), at<const std::int32_t>(stored), n, options,
             bounds.arrays(), on);
}

std::int64_t sort_workspace_bytes_cuda(std::int64_t n, int device) {
  const DeviceGuard guard(device);
  return static_cast<std::int64_t>(sort_workspace_bytes(n));
}

int morton_order_cuda(Address means, std::int64_t n, const std::array<double, 4>& cube,
                      Address codes, Address rows, Address workspace, std::int64_t n_bytes,
                      int device, std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  const StreamView on = StreamView::from_handle(stream);
  auto* const code = at<std::uint64_t>(codes);
  auto* const row = at<std::int32_t>(rows);
  morton_codes(at<const float>(means), n, {{cube[0], cube[1], cube[2]}, cube[3]}, code, row, on);
  return sort_rows(code, row, n, at<void>(workspace), static_cast<std::size_t>(n_bytes), on);
}

void pair_counts_cuda(Address mask, std::int64_t n, int n_views, Address together, int device,
                      std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  const StreamView on = StreamView::from_handle(stream);
  pair_counts(at<const std::uint32_t>(mask), n, n_views, at<unsigned long long>(together), on);
}

}  // namespace

void register_cuda(py::module_& module) {
  module.attr("N_TOTALS") = sizeof(Totals) / 4;
  py::class_<RowsAt>(module, "RowsAt", py::module_local())
      .def(py::init<std::int64_t, Address, Address, Address, Address>(), py::arg("n_rows"),
           py::arg("means"), py::arg("scales"), py::arg("quats"), py::arg("opacities"));
  py::class_<ViewsAt>(module, "ViewsAt", py::module_local())
      .def(py::init<int, Address, Address, const py::array_t<float, py::array::c_style>&>(),
           py::arg("n_views"), py::arg("viewmats"), py::arg("Ks"), py::arg("sizes"));
  py::class_<BoundsAt>(module, "BoundsAt", py::module_local())
      .def(py::init<std::int64_t, Address, Address, Address, Address, Address>(),
           py::arg("n_blocks"), py::arg("lower"), py::arg("upper"), py::arg("scale"),
           py::arg("slack"), py::arg("not_finite"));
  py::class_<LayoutAt>(module, "LayoutAt", py::module_local())
      .def(py::init<std::int64_t, std::int32_t, Address, std::int64_t, Address, Address,
                    const BoundsAt&>(),
           py::arg("n_rows"), py::arg("block_size"), py::arg("order"), py::arg("n_slots"),
           py::arg("block_in_slot"), py::arg("slot_of_block"), py::arg("bounds"));
  py::class_<CudaCull>(module, "CudaCull", py::module_local())
      .def(py::init([](const RowsAt& rows, const ViewsAt& views,
                       const std::optional<LayoutAt>& blocks, const Options& options, int device,
                       std::uintptr_t stream) {
             return CudaCull(rows, views, blocks, options, device, StreamView::from_handle(stream));
           }),
           py::arg("rows"), py::arg("views"), py::arg("blocks"), py::arg("options"),
           py::arg("device"), py::arg("stream"))
      .def_property_readonly("n_words", &CudaCull::n_words)
      .def("mark", &CudaCull::mark, py::arg("workspace"), py::arg("totals"))
      .def("write", &CudaCull::write, py::arg("ids"), py::arg("mask"), py::arg("counts"));
  module.def("view_words", &ViewWorkspace::words, py::arg("n_views"));
  module.def("boxes_cuda", &boxes_cuda, py::arg("rows"), py::arg("views"), py::arg("options"),
             py::arg("ids"), py::arg("n"), py::arg("workspace"), py::arg("boxes"),
             py::arg("device"), py::arg("stream"));
  module.def("views_of_blocks_cuda", &views_of_blocks_cuda, py::arg("bounds"), py::arg("views"),
             py::arg("options"), py::arg("workspace"), py::arg("totals"), py::arg("words"),
             py::arg("device"), py::arg("stream"));
  module.def("fit_blocks_cuda", &fit_blocks_cuda, py::arg("rows"), py::arg("n_rows"),
             py::arg("block_size"), py::arg("order"), py::arg("blocks"), py::arg("stored"),
             py::arg("n"), py::arg("options"), py::arg("bounds"), py::arg("device"),
             py::arg("stream"));
  module.def("sort_workspace_bytes_cuda", &sort_workspace_bytes_cuda, py::arg("n"),
             py::arg("device"));
  module.def("morton_order_cuda", &morton_order_cuda, py::arg("means"), py::arg("n"),
             py::arg("cube"), py::arg("codes"), py::arg("rows"), py::arg("workspace"),
             py::arg("n_bytes"), py::arg("device"), py::arg("stream"));
  module.def("pair_counts_cuda", &pair_counts_cuda, py::arg("mask"), py::arg("n"),
             py::arg("n_views"), py::arg("together"), py::arg("device"), py::arg("stream"));
}

#else

void register_cuda(py::module_&) {}

#endif

}  // namespace gs::cull
