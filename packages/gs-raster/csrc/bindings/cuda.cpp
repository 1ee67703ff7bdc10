// SPDX-License-Identifier: Apache-2.0
// The stages on a device. The Python modules allocate what the stages need and check every array;
// here arrays are addresses, 0 for one that is not there.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/registers.hpp"

#if defined(GS_WITH_CUDA)
#include "bindings/addresses.hpp"
#include "gs/cuda/check.hpp"
#include "gs/python/gil.hpp"
#include "loss.hpp"
#include "perturb.hpp"
#include "project.hpp"
#endif

namespace gs::raster {

namespace py = pybind11;

#if defined(GS_WITH_CUDA)

using gs::cuda::DeviceGuard;
using gs::cuda::StreamView;
using gs::python::ReleaseGil;

namespace {

void project_cuda(const RowsAt& rows, const ProjectionAt& projection, Address splats, Address radii,
                  int device, std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  project(rows.rows(), projection.view(), projection.options(), projection.sh_degree(),
          at<Splat>(splats), at<std::int32_t>(radii), {}, StreamView::from_handle(stream));
}

void project_backward_cuda(const RowsAt& rows, const ProjectionAt& projection, Address splats,
                           Address gradients, const RowGradientsAt& out,
                           const StatisticsAt& statistics, Address radii, int device,
                           std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  project_backward(rows.rows(), projection.view(), projection.options(), projection.sh_degree(),
                   at<const Splat>(splats), {at<const SplatGradient>(gradients)}, out.gradients(),
                   statistics_of(statistics, radii), StreamView::from_handle(stream));
}

std::size_t order_workspace_bytes_cuda(std::int64_t n, int device) {
  const DeviceGuard guard(device);
  return order_workspace_bytes(n);
}

std::size_t count_workspace_bytes_cuda(std::int64_t n, int device) {
  const DeviceGuard guard(device);
  return count_workspace_bytes(n);
}

std::size_t list_workspace_bytes_cuda(std::int64_t room, const Corners& rect, int device) {
  const DeviceGuard guard(device);
  return list_workspace_bytes(room, rect_of(rect));
}

void order_splats_cuda(Address splats, Address keys, std::int64_t n, Address order,
                       const Workspace& workspace, int device, std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  order_splats(at<const Splat>(splats), {at<const std::int32_t>(keys), nullptr}, n,
               at<std::int32_t>(order), at<void>(workspace.first), workspace.second,
               StreamView::from_handle(stream));
}

/// Returns how many instances there are. host_total: page-locked host memory. Waits for the stream,
/// and for nothing else.
std::uint64_t count_instances_cuda(Address splats, Address order, std::int64_t n,
                                   const Corners& rect, Address ends, Address total,
                                   Address host_total, const Workspace& workspace, int device,
                                   std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  const StreamView on = StreamView::from_handle(stream);
  GS_CUDA_TRY(cudaMemsetAsync(at<void>(total), 0, sizeof(std::uint64_t), on.get()));
  count_instances(at<const Splat>(splats), at<const std::int32_t>(order), n, rect_of(rect),
                  at<std::uint32_t>(ends), at<std::uint64_t>(total), at<void>(workspace.first),
                  workspace.second, on);
  auto* const found = at<std::uint64_t>(host_total);
  GS_CUDA_TRY(
      cudaMemcpyAsync(found, at<void>(total), sizeof(*found), cudaMemcpyDeviceToHost, on.get()));
  GS_CUDA_TRY(cudaStreamSynchronize(on.get()));
  return *found;
}

void list_instances_cuda(Address splats, Address order, std::int64_t n, const TileListsAt& lists,
                         Address ends, Address total, const Workspace& workspace, int device,
                         std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  list_instances(at<const Splat>(splats), at<const std::int32_t>(order), n, lists.rect(),
                 at<const std::uint32_t>(ends), at<std::uint64_t>(total), lists.lists(),
                 at<void>(workspace.first), workspace.second, StreamView::from_handle(stream));
}

void blend_cuda(Address splats, const TileListsAt& lists, Address background, Address image,
                Address alpha, Address depth, Address transmittance, Address last, int device,
                std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  const Pixels pixels{at<float>(image), at<float>(alpha), at<float>(depth),
                      at<float>(transmittance), at<std::int32_t>(last)};
  blend(at<const Splat>(splats), lists.lists(), lists.rect(), at<const float>(background), pixels,
        StreamView::from_handle(stream));
}

void blend_backward_cuda(Address splats, std::int64_t n, const TileListsAt& lists,
                         Address background, Address transmittance, Address last,
                         Address grad_image, Address grad_alpha, Address grad_depth, bool absgrad,
                         Address slots, Address gradients, bool add, int device,
                         std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  const Pixels pixels{nullptr, nullptr, nullptr, at<float>(transmittance), at<std::int32_t>(last)};
  const PixelGradients of_pixels{at<const float>(grad_image), at<const float>(grad_alpha),
                                 at<const float>(grad_depth)};
  blend_backward(at<const Splat>(splats), n, lists.lists(), lists.rect(),
                 at<const float>(background), pixels, of_pixels, {grad_depth != 0, absgrad},
                 at<float>(slots), at<SplatGradient>(gradients), add,
                 StreamView::from_handle(stream));
}

std::int64_t loss_partials_cuda(int width, int height, int device) {
  const DeviceGuard guard(device);
  return loss_partials(width, height);
}

void photometric_loss_cuda(Address image, Address truth, std::int64_t truth_pitch, bool has_mask,
                           std::pair<int, int> size, const Corners& core,
                           std::pair<float, float> weights, Address share, Address gradient,
                           Address partials, std::int64_t n_partials, int device,
                           std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  const ImagePair pair{at<const float>(image), at<const std::uint8_t>(truth), truth_pitch,
                       size.first, size.second};
  photometric_loss(pair, has_mask, rect_of(core), {weights.first, weights.second}, at<float>(share),
                   at<float>(gradient), at<double>(partials), n_partials,
                   StreamView::from_handle(stream));
}

/// columns: of means, scales, quats and opacities. source: seed, purpose and step.
void perturb_cuda(std::int64_t n, const std::array<ColumnAt, 4>& columns, Address keys,
                  const std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>& source, float size,
                  int device, std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  const NoisyRows rows{n,
                       column<float>(columns[0]),
                       column<const float>(columns[1]),
                       column<const float>(columns[2]),
                       column<const float>(columns[3]),
                       at<const std::int32_t>(keys)};
  const auto [seed, purpose, step] = source;
  perturb(rows, {seed, purpose, step}, size, StreamView::from_handle(stream));
}

int slot_width_of(bool depth, bool absgrad) { return slot_width({depth, absgrad}); }

void register_arguments(py::module_& module) {
  py::class_<RowsAt>(module, "RowsAt", py::module_local())
      .def(py::init<std::int64_t, Address, Address, const ColumnsAt&, int>(), py::arg("n"),
           py::arg("slots"), py::arg("sh_slots"), py::arg("columns"), py::arg("n_bases"));
  py::class_<RowGradientsAt>(module, "RowGradientsAt", py::module_local())
      .def(py::init<Address, Address, bool, const ColumnsAt&>(), py::arg("skip"), py::arg("places"),
           py::arg("add"), py::arg("columns"));
  py::class_<ProjectionAt>(module, "ProjectionAt", py::module_local())
      .def(py::init<Address, Address, int, int, const ProjectionAt::Rules&, int>(),
           py::arg("viewmat"), py::arg("K"), py::arg("width"), py::arg("height"),
           py::arg("options"), py::arg("sh_degree"));
  py::class_<TileListsAt>(module, "TileListsAt", py::module_local())
      .def(py::init<const Corners&, std::int64_t, Address, Address, Address, Address, Address>(),
           py::arg("rect"), py::arg("room"), py::arg("begins"), py::arg("splats"), py::arg("slots"),
           py::arg("firsts"), py::arg("counts"));
}

}  // namespace

void register_cuda(py::module_& module) {
  register_arguments(module);
  module.def("project_cuda", &project_cuda, py::arg("rows"), py::arg("projection"),
             py::arg("splats"), py::arg("radii"), py::arg("device"), py::arg("stream"));
  module.def("project_backward_cuda", &project_backward_cuda, py::arg("rows"),
             py::arg("projection"), py::arg("splats"), py::arg("gradients"), py::arg("out"),
             py::arg("statistics"), py::arg("radii"), py::arg("device"), py::arg("stream"));
  module.def("order_workspace_bytes", &order_workspace_bytes_cuda, py::arg("n"), py::arg("device"));
  module.def("count_workspace_bytes", &count_workspace_bytes_cuda, py::arg("n"), py::arg("device"));
  module.def("list_workspace_bytes", &list_workspace_bytes_cuda, py::arg("room"), py::arg("rect"),
             py::arg("device"));
  module.def("order_splats_cuda", &order_splats_cuda, py::arg("splats"), py::arg("keys"),
             py::arg("n"), py::arg("order"), py::arg("workspace"), py::arg("device"),
             py::arg("stream"));
  module.def("count_instances_cuda", &count_instances_cuda, py::arg("splats"), py::arg("order"),
             py::arg("n"), py::arg("rect"), py::arg("ends"), py::arg("total"),
             py::arg("host_total"), py::arg("workspace"), py::arg("device"), py::arg("stream"));
  module.def("list_instances_cuda", &list_instances_cuda, py::arg("splats"), py::arg("order"),
             py::arg("n"), py::arg("lists"), py::arg("ends"), py::arg("total"),
             py::arg("workspace"), py::arg("device"), py::arg("stream"));
  module.def("blend_cuda", &blend_cuda, py::arg("splats"), py::arg("lists"), py::arg("background"),
             py::arg("image"), py::arg("alpha"), py::arg("depth"), py::arg("transmittance"),
             py::arg("last"), py::arg("device"), py::arg("stream"));
  module.def("blend_backward_cuda", &blend_backward_cuda, py::arg("splats"), py::arg("n"),
             py::arg("lists"), py::arg("background"), py::arg("transmittance"), py::arg("last"),
             py::arg("grad_image"), py::arg("grad_alpha"), py::arg("grad_depth"),
             py::arg("absgrad"), py::arg("slots"), py::arg("gradients"), py::arg("add"),
             py::arg("device"), py::arg("stream"));
  module.def("loss_partials", &loss_partials_cuda, py::arg("width"), py::arg("height"),
             py::arg("device"));
  module.def("photometric_loss_cuda", &photometric_loss_cuda, py::arg("image"), py::arg("truth"),
             py::arg("truth_pitch"), py::arg("has_mask"), py::arg("size"), py::arg("core"),
             py::arg("weights"), py::arg("share"), py::arg("gradient"), py::arg("partials"),
             py::arg("n_partials"), py::arg("device"), py::arg("stream"));
  module.def("perturb_cuda", &perturb_cuda, py::arg("n"), py::arg("columns"), py::arg("keys"),
             py::arg("source"), py::arg("size"), py::arg("device"), py::arg("stream"));
  module.def("slot_width", &slot_width_of, py::arg("depth"), py::arg("absgrad"));
}

#else

void register_cuda(py::module_&) {}

#endif

}  // namespace gs::raster
