// SPDX-License-Identifier: Apache-2.0
#include "bindings/arguments.hpp"
#include "bindings/registers.hpp"

#if defined(GS_WITH_CUDA)
#include "cull_cuda.hpp"
#include "gs/cuda/check.hpp"
#endif

namespace gs::cull {

namespace py = pybind11;

#if defined(GS_WITH_CUDA)

using gs::python::Array;
using gs::python::kAny;

namespace {

Layout plain_layout(std::int64_t n_rows) {
  // Small blocks fill the device even when the scene is small.
  constexpr std::int32_t kBlock = 256;
  return {n_rows, kBlock, (n_rows + kBlock - 1) / kBlock, nullptr, nullptr, nullptr, nullptr};
}

/// The parts of `workspace`, in int32 words: totals, ticket, bits, then what needs no zeroing.
struct Workspace {
  Totals* totals;
  std::uint32_t *ticket, *bits;
  std::int32_t* chunk_offsets;
  Camera* cameras;
  std::int64_t zeroed, size;

  Workspace(std::int32_t* base, std::int64_t n_rows, std::int64_t n_views) {
    std::int64_t at = 0;
    const auto take = [&](std::int64_t words) {
      std::int32_t* part = base + at;
      at += (words + 3) / 4 * 4;  // 16-byte steps
      return part;
    };
    totals = reinterpret_cast<Totals*>(take(sizeof(Totals) / 4));
    ticket = reinterpret_cast<std::uint32_t*>(take(1));
    bits = reinterpret_cast<std::uint32_t*>(take((n_rows + 31) / 32));
    zeroed = at;
    chunk_offsets = take(visible_chunks(n_rows));
    cameras = reinterpret_cast<Camera*>(take(n_views * static_cast<std::int64_t>(sizeof(Camera) / 4)));
    size = at;
  }
};

/// Words of the workspace of a call, and how many of the first must be zero.
py::tuple workspace_words(std::int64_t n_rows, std::int64_t n_views) {
  const Workspace parts(nullptr, n_rows, n_views);
  return py::make_tuple(parts.size, parts.zeroed);
}

void mark_cuda(py::handle means, py::handle scales, py::handle quats, py::handle opacities,
               py::handle viewmats, py::handle Ks, py::handle sizes, py::tuple one_size,
               const Options& options, py::handle workspace, std::uintptr_t stream) {
  const GeometryArrays rows(means, scales, quats, opacities);
  const int device = rows.device();
  const Array poses(viewmats, "viewmats"), intrinsics(Ks, "Ks"), work(workspace, "workspace");
  const float* pose = poses.shape({kAny, 4, 4}).contiguous().on(device).data<const float>();
  const std::int64_t n_views = poses.size(0);
  const float* K = intrinsics.shape({n_views, 3, 3}).contiguous().on(device).data<const float>();
  std::optional<Array> extents;
  const float* size = nullptr;
  float shared_size[6] = {};
  if (sizes.is_none()) {
    for (int i = 0; i < 6; ++i) shared_size[i] = one_size[i].cast<float>();
  } else {
    extents.emplace(sizes, "sizes");
    size = extents->shape({n_views, 6}).contiguous().on(device).data<const float>();
  }
  const Workspace parts(work.contiguous().on(device).data<std::int32_t>(), rows.n_rows(), n_views);
  GS_CHECK(work.size(0) >= parts.size, "workspace must have ", parts.size, " words, got ",
           work.size(0));
  const Geometry geometry = rows.view();
  const Layout layout = plain_layout(rows.n_rows());
  py::gil_scoped_release unlocked;
  const gs::cuda::DeviceGuard guard(device);
  const cudaStream_t on = gs::cuda::as_stream(stream);
  prepare_cameras(pose, K, size, shared_size, static_cast<int>(n_views), options, parts.cameras,
                  parts.totals, on);
  mark_visible(geometry, layout, parts.cameras, static_cast<int>(n_views), options, parts.bits,
               parts.chunk_offsets, parts.ticket, parts.totals, on);
}

void write_cuda(py::handle means, py::handle scales, py::handle quats, py::handle opacities,
                int n_views, const Options& options, py::handle workspace, py::handle ids,
                py::handle mask, py::handle counts, std::uintptr_t stream) {
  const GeometryArrays rows(means, scales, quats, opacities);
  const int device = rows.device();
  const Array work(workspace, "workspace"), out(ids, "ids"), words(mask, "mask"),
      totals(counts, "counts");
  const Workspace parts(work.contiguous().on(device).data<std::int32_t>(), rows.n_rows(), n_views);
  std::int32_t* const id = out.shape({kAny}).contiguous().on(device).data<std::int32_t>();
  const std::int64_t n_visible = out.size(0);
  auto* const word = reinterpret_cast<std::uint32_t*>(
      words.shape({n_visible, (n_views + 31) / 32}).contiguous().on(device).data<std::int32_t>());
  std::int32_t* const count =
      totals.shape({n_views}).contiguous().on(device).data<std::int32_t>();
  const Geometry geometry = rows.view();
  const Layout layout = plain_layout(rows.n_rows());
  py::gil_scoped_release unlocked;
  const gs::cuda::DeviceGuard guard(device);
  write_visible(geometry, layout, parts.cameras, n_views, options, parts.bits,
                parts.chunk_offsets, n_visible, id, word, count, gs::cuda::as_stream(stream));
}

}  // namespace

void register_cull_cuda(py::module_& module) {
  module.def("workspace_words", &workspace_words);
  module.def("mark_cuda", &mark_cuda);
  module.def("write_cuda", &write_cuda);
}

#else

void register_cull_cuda(py::module_&) {}

#endif

}  // namespace gs::cull
