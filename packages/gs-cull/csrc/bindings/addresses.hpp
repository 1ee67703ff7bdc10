// SPDX-License-Identifier: Apache-2.0
// Arrays in device memory by their addresses. gs_cull/device.py has checked dtype, shape, device
// and contiguity of each, and keeps it alive until the stream has passed the call.
#pragma once

#include <pybind11/numpy.h>

#include <vector>

#include "block_test.hpp"
#include "cull_cuda.hpp"
#include "gs/error.hpp"

namespace gs::cull {

/// 0: there is no such array.
using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

/// means (N, 3), scales (N, 3), quats (N, 4), opacities (N,) or none.
class RowsAt {
 public:
  RowsAt(std::int64_t n_rows, Address means, Address scales, Address quats, Address opacities)
      : n_rows_(n_rows) {
    geometry_.means = at<const float>(means);
    geometry_.scales = at<const float>(scales);
    geometry_.quats = at<const float>(quats);
    geometry_.opacities = at<const float>(opacities);
  }
  std::int64_t n_rows() const { return n_rows_; }
  const Geometry& geometry() const { return geometry_; }

 private:
  std::int64_t n_rows_;
  Geometry geometry_;
};

/// viewmats (B, 4, 4) and Ks (B, 3, 3) on the device; sizes (B, 6) on the host, copied.
class ViewsAt {
 public:
  ViewsAt(int n_views, Address viewmats, Address Ks,
          const pybind11::array_t<float, pybind11::array::c_style>& sizes)
      : n_views_(n_views), viewmats_(viewmats), Ks_(Ks) {
    GS_CHECK(sizes.size() == 6 * static_cast<pybind11::ssize_t>(n_views),
             "sizes must have 6 numbers a view, got ", sizes.size());
    sizes_.assign(sizes.data(), sizes.data() + sizes.size());
  }
  int n_views() const { return n_views_; }
  const float* viewmats() const { return at<const float>(viewmats_); }
  const float* Ks() const { return at<const float>(Ks_); }
  const float* sizes() const { return sizes_.data(); }

 private:
  int n_views_;
  Address viewmats_, Ks_;
  std::vector<float> sizes_;
};

/// lower (blocks, 3), upper (blocks, 3), scale (blocks,), slack (blocks, 2), not_finite (blocks,).
class BoundsAt {
 public:
  BoundsAt(std::int64_t n_blocks, Address lower, Address upper, Address scale, Address slack,
           Address not_finite)
      : n_blocks_(n_blocks),
        arrays_{at<float>(lower), at<float>(upper), at<float>(scale), at<const float>(slack),
                at<std::int32_t>(not_finite)} {}
  std::int64_t n_blocks() const { return n_blocks_; }
  const BoundsArrays& arrays() const { return arrays_; }

 private:
  std::int64_t n_blocks_;
  BoundsArrays arrays_;
};

/// order (n_rows,) or none, block_in_slot (n_slots,) and slot_of_block (blocks,) or neither.
class LayoutAt {
 public:
  /// n_slots: -1 when every block is there.
  LayoutAt(std::int64_t n_rows, std::int32_t block_size, Address order, std::int64_t n_slots,
           Address block_in_slot, Address slot_of_block, const BoundsAt& bounds)
      : layout_{n_rows,
                block_size,
                n_slots >= 0 ? n_slots : bounds.n_blocks(),
                at<const std::int32_t>(order),
                at<const std::int32_t>(block_in_slot),
                at<const std::int32_t>(slot_of_block),
                nullptr},
        bounds_(bounds) {}
  /// Without the views of each block.
  const Layout& layout() const { return layout_; }
  const BoundsAt& bounds() const { return bounds_; }

 private:
  Layout layout_;
  BoundsAt bounds_;
};

}  // namespace gs::cull
