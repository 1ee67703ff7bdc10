// SPDX-License-Identifier: Apache-2.0
#include "bindings/arguments.hpp"

#include "gs/thread_pool.hpp"

namespace gs::cull {

namespace py = pybind11;
using gs::python::Array;
using gs::python::kAny;

ThreadPool& pool() {
  // Never destroyed: a thread may still cull while the process ends.
  static auto* const threads = new ThreadPool();
  return *threads;
}

GeometryArrays::GeometryArrays(py::handle means, py::handle scales, py::handle quats,
                               py::handle opacities)
    : means_(means, "means"), scales_(scales, "scales"), quats_(quats, "quats") {
  const std::int64_t n = means_.shape({kAny, 3}).size(0);
  GS_CHECK(n < INT32_MAX, "means must have fewer than 2^31 - 1 rows, got ", n);
  view_.means = means_.contiguous().on(-1).data<const float>();
  view_.scales = scales_.shape({n, 3}).contiguous().on(-1).data<const float>();
  view_.quats = quats_.shape({n, 4}).contiguous().on(-1).data<const float>();
  view_.opacities = nullptr;
  if (opacities.is_none()) return;
  opacities_.emplace(opacities, "opacities");
  view_.opacities = opacities_->shape({n}).contiguous().on(-1).data<const float>();
}

BlockArguments::BlockArguments(const py::tuple& parts, std::int64_t n_views)
    : n_rows_(parts[0].cast<std::int64_t>()), block_size_(parts[1].cast<std::int32_t>()) {
  arrays_.reserve(4);
  n_resident_ = n_blocks();
  if (!parts[2].is_none()) {
    arrays_.emplace_back(parts[2], "order");
    order_ = arrays_.back().shape({n_rows_}).contiguous().on(-1).data<const std::int32_t>();
  }
  if (!parts[3].is_none()) {
    arrays_.emplace_back(parts[3], "block_in_slot");
    const Array& slots = arrays_.back();
    block_in_slot_ = slots.shape({kAny}).contiguous().on(-1).data<const std::int32_t>();
    n_resident_ = slots.size(0);
    arrays_.emplace_back(parts[4], "slot_of_block");
    slot_of_block_ =
        arrays_.back().shape({n_blocks()}).contiguous().on(-1).data<const std::int32_t>();
  }
  arrays_.emplace_back(parts[5], "views");
  const Array& views = arrays_.back();
  views.shape({n_blocks(), (n_views + 31) / 32}).contiguous().on(-1);
  views_ = views.data<const std::uint32_t>();
}

BoundsArguments::BoundsArguments(const py::tuple& parts) {
  arrays_.reserve(5);
  const char* names[] = {"lower", "upper", "scale", "slack", "not_finite"};
  for (int i = 0; i < 5; ++i) {
    arrays_.emplace_back(parts[i], names[i]);
    arrays_[i].contiguous().on(-1);
  }
  size_ = arrays_[2].shape({kAny}).size(0);
  view_.lower = arrays_[0].shape({size_, 3}).data<float>();
  view_.upper = arrays_[1].shape({size_, 3}).data<float>();
  view_.scale = arrays_[2].data<float>();
  view_.slack = arrays_[3].shape({size_, 2}).data<const float>();
  view_.not_finite = arrays_[4].shape({size_}).data<std::int32_t>();
}

BlockingArguments::BlockingArguments(const py::tuple& parts) {
  arrays_.reserve(3);
  view_ = {parts[0].cast<std::int64_t>(), parts[1].cast<std::int32_t>(), nullptr};
  if (!parts[2].is_none()) {
    arrays_.emplace_back(parts[2], "order");
    view_.order =
        arrays_.back().shape({view_.n_rows}).contiguous().on(-1).data<const std::int32_t>();
  }
  arrays_.emplace_back(parts[3], "blocks");
  blocks_ = arrays_.back().shape({kAny}).contiguous().on(-1).data<const std::int32_t>();
  size_ = arrays_.back().size(0);
  arrays_.emplace_back(parts[4], "stored");
  stored_ = arrays_.back().shape({size_}).contiguous().on(-1).data<const std::int32_t>();
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

void check_stray_bits(const std::uint32_t* words, std::int64_t n, int n_views) {
  if (n_views % 32 == 0) return;
  const std::int64_t n_words = (n_views + 31) / 32;
  const std::uint32_t stray = ~std::uint32_t{0} << (n_views % 32);
  for (std::int64_t row = 0; row < n; ++row) {
    const std::uint32_t found = words[(row + 1) * n_words - 1] & stray;
    GS_CHECK(found == 0, "mask must have no bits beyond its ", n_views, " views, got one for view ",
             32 * (n_words - 1) + __builtin_ctz(found), " in row ", row);
  }
}

}  // namespace gs::cull
