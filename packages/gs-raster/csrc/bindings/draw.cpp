// SPDX-License-Identifier: Apache-2.0
// A whole view in one call each way. As in cuda.cpp, the Python modules allocate and check.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/registers.hpp"

#if defined(GS_WITH_CUDA)
#include "bindings/addresses.hpp"
#include "draw.hpp"
#include "gs/cuda/check.hpp"
#include "gs/python/gil.hpp"
#endif

namespace gs::raster {

namespace py = pybind11;

#if defined(GS_WITH_CUDA)

using gs::cuda::DeviceGuard;
using gs::cuda::StreamView;
using gs::python::ReleaseGil;

namespace {

/// What is drawn, and how.
class SceneAt {
 public:
  /// keys: by slot of the geometry.
  SceneAt(const RowsAt& rows, Address keys, const ProjectionAt& projection, const Corners& rect,
          Address background, bool has_radii)
      : scene_{rows.rows(),
               Keys{at<const std::int32_t>(keys), rows.rows().slots},
               projection.view(),
               projection.options(),
               projection.sh_degree(),
               rect_of(rect),
               at<const float>(background),
               has_radii} {}
  const Scene& scene() const { return scene_; }

 private:
  Scene scene_;
};

Memory memory_of(const Workspace& workspace) {
  return {at<void>(workspace.first), workspace.second};
}

/// Lists, and pixels.
using DrawingAt = std::pair<Workspace, Workspace>;

Drawing drawing_of(const DrawingAt& drawing) {
  return {memory_of(drawing.first), memory_of(drawing.second)};
}

/// drawn: an event that is recorded behind the drawing, or none.
void draw_cuda(const SceneAt& scene, std::int64_t room, Address overflowed, Address n_instances,
               Address image, Address depth, const DrawingAt& drawing, const Workspace& scratch,
               GraphCache* cache, Address drawn, int device, std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  draw(scene.scene(), room, {at<std::int32_t>(overflowed), at<std::uint64_t>(n_instances)},
       at<float>(image), at<float>(depth), drawing_of(drawing), memory_of(scratch), cache,
       StreamView::from_handle(stream));
  if (drawn != 0)
    GS_CUDA_TRY(cudaEventRecord(at<CUevent_st>(drawn), StreamView::from_handle(stream).get()));
}

/// Splats of any rows, and how they are drawn.
class SplatSceneAt {
 public:
  SplatSceneAt(Address splats, Address keys, std::int64_t n, const Corners& rect,
               Address background)
      : scene_{n,
               at<const Splat>(splats),
               {at<const std::int32_t>(keys), nullptr},
               rect_of(rect),
               at<const float>(background)} {}
  const SplatScene& scene() const { return scene_; }

 private:
  SplatScene scene_;
};

/// As draw_cuda().
void draw_splats_cuda(const SplatSceneAt& scene, std::int64_t room, Address overflowed,
                      Address n_instances, Address image, Address depth, const DrawingAt& drawing,
                      const Workspace& scratch, GraphCache* cache, Address drawn, int device,
                      std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  draw(scene.scene(), room, {at<std::int32_t>(overflowed), at<std::uint64_t>(n_instances)},
       at<float>(image), at<float>(depth), drawing_of(drawing), memory_of(scratch), cache,
       StreamView::from_handle(stream));
  if (drawn != 0)
    GS_CUDA_TRY(cudaEventRecord(at<CUevent_st>(drawn), StreamView::from_handle(stream).get()));
}

void draw_splats_backward_cuda(const SplatSceneAt& scene, std::int64_t room,
                               const DrawingAt& drawing, Address grad_image, Address grad_alpha,
                               Address grad_depth, bool absgrad, Address gradients,
                               const Workspace& scratch, int device, std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  draw_backward(
      scene.scene(), room, drawing_of(drawing),
      {at<const float>(grad_image), at<const float>(grad_alpha), at<const float>(grad_depth)},
      {grad_depth != 0, absgrad}, at<SplatGradient>(gradients), memory_of(scratch),
      StreamView::from_handle(stream));
}

/// Bytes of scratch memory of sort_cuda().
std::size_t sort_bytes_cuda(std::int64_t n, std::int64_t room, const Corners& rect, int device) {
  const DeviceGuard guard(device);
  return draw_scratch_bytes(n, room, rect_of(rect));
}

/// sorted: an event that is recorded behind the sort, or none.
void sort_cuda(Address splats, Address keys, std::int64_t n, const TileListsAt& lists,
               Address overflowed, Address n_instances, const Workspace& scratch, GraphCache* cache,
               Address sorted, int device, std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  const StreamView on = StreamView::from_handle(stream);
  const SortJob job{n,
                    at<const Splat>(splats),
                    {at<const std::int32_t>(keys), nullptr},
                    lists.rect(),
                    nullptr,
                    lists.lists(),
                    {at<std::int32_t>(overflowed), at<std::uint64_t>(n_instances)}};
  const ViewSort sort(n, job.lists.room, job.rect);
  sort.put_keys(at<void>(scratch.first), scratch.second, job, on);
  sort.run(keys != 0, at<void>(scratch.first), scratch.second, cache, on);
  if (sorted != 0) GS_CUDA_TRY(cudaEventRecord(at<CUevent_st>(sorted), on.get()));
}

void draw_backward_cuda(const SceneAt& scene, std::int64_t room, const DrawingAt& drawing,
                        Address grad_image, Address grad_alpha, Address grad_depth, bool absgrad,
                        Address of_splats, const RowGradientsAt& out,
                        const StatisticsAt& statistics, const Workspace& scratch, int device,
                        std::uintptr_t stream) {
  const ReleaseGil unlocked;
  const DeviceGuard guard(device);
  draw_backward(
      scene.scene(), room, drawing_of(drawing),
      {at<const float>(grad_image), at<const float>(grad_alpha), at<const float>(grad_depth)},
      {grad_depth != 0, absgrad}, at<SplatGradient>(of_splats), out.gradients(),
      statistics_of(statistics, 0), memory_of(scratch), StreamView::from_handle(stream));
}

/// Bytes of a drawing's lists and pixels, and of the scratch memory of draw().
std::tuple<std::size_t, std::size_t, std::size_t> draw_bytes_cuda(std::int64_t n_rows,
                                                                  std::int64_t room,
                                                                  const Corners& corners,
                                                                  bool has_radii, int device) {
  const DeviceGuard guard(device);
  const Rect rect = rect_of(corners);
  return {lists_bytes(n_rows, room, rect, has_radii), pixels_bytes(rect),
          draw_scratch_bytes(n_rows, room, rect)};
}

/// The same of a drawing of splats.
std::tuple<std::size_t, std::size_t, std::size_t> draw_splats_bytes_cuda(std::int64_t n,
                                                                         std::int64_t room,
                                                                         const Corners& corners,
                                                                         int device) {
  const DeviceGuard guard(device);
  const Rect rect = rect_of(corners);
  return {lists_bytes(n, room, rect), pixels_bytes(rect), draw_scratch_bytes(n, room, rect)};
}

/// Bytes of the scratch memory of draw_backward().
std::size_t draw_backward_bytes_of(std::int64_t room, bool depth, bool absgrad) {
  return draw_backward_scratch_bytes(room, {depth, absgrad});
}

}  // namespace

void register_draw(py::module_& module) {
  py::class_<GraphCache>(module, "GraphCache", py::module_local())
      .def(py::init<>())
      .def("__len__", &GraphCache::size);
  py::class_<SceneAt>(module, "SceneAt", py::module_local())
      .def(py::init<const RowsAt&, Address, const ProjectionAt&, const Corners&, Address, bool>(),
           py::arg("rows"), py::arg("keys"), py::arg("projection"), py::arg("rect"),
           py::arg("background"), py::arg("has_radii"));
  py::class_<SplatSceneAt>(module, "SplatSceneAt", py::module_local())
      .def(py::init<Address, Address, std::int64_t, const Corners&, Address>(), py::arg("splats"),
           py::arg("keys"), py::arg("n"), py::arg("rect"), py::arg("background"));
  module.def("draw_splats_bytes", &draw_splats_bytes_cuda, py::arg("n"), py::arg("room"),
             py::arg("rect"), py::arg("device"));
  module.def("draw_splats_cuda", &draw_splats_cuda, py::arg("scene"), py::arg("room"),
             py::arg("overflowed"), py::arg("n_instances"), py::arg("image"), py::arg("depth"),
             py::arg("drawing"), py::arg("scratch"), py::arg("cache"), py::arg("drawn"),
             py::arg("device"), py::arg("stream"));
  module.def("draw_splats_backward_cuda", &draw_splats_backward_cuda, py::arg("scene"),
             py::arg("room"), py::arg("drawing"), py::arg("grad_image"), py::arg("grad_alpha"),
             py::arg("grad_depth"), py::arg("absgrad"), py::arg("gradients"), py::arg("scratch"),
             py::arg("device"), py::arg("stream"));
  module.def("draw_bytes", &draw_bytes_cuda, py::arg("n_rows"), py::arg("room"), py::arg("rect"),
             py::arg("has_radii"), py::arg("device"));
  module.def("draw_backward_bytes", &draw_backward_bytes_of, py::arg("room"), py::arg("depth"),
             py::arg("absgrad"));
  module.def("draw_cuda", &draw_cuda, py::arg("scene"), py::arg("room"), py::arg("overflowed"),
             py::arg("n_instances"), py::arg("image"), py::arg("depth"), py::arg("drawing"),
             py::arg("scratch"), py::arg("cache"), py::arg("drawn"), py::arg("device"),
             py::arg("stream"));
  module.def("sort_bytes", &sort_bytes_cuda, py::arg("n"), py::arg("room"), py::arg("rect"),
             py::arg("device"));
  module.def("sort_cuda", &sort_cuda, py::arg("splats"), py::arg("keys"), py::arg("n"),
             py::arg("lists"), py::arg("overflowed"), py::arg("n_instances"), py::arg("scratch"),
             py::arg("cache"), py::arg("sorted"), py::arg("device"), py::arg("stream"));
  module.def("draw_backward_cuda", &draw_backward_cuda, py::arg("scene"), py::arg("room"),
             py::arg("drawing"), py::arg("grad_image"), py::arg("grad_alpha"),
             py::arg("grad_depth"), py::arg("absgrad"), py::arg("of_splats"), py::arg("out"),
             py::arg("statistics"), py::arg("scratch"), py::arg("device"), py::arg("stream"));
}

#else

void register_draw(py::module_&) {}

#endif

}  // namespace gs::raster
