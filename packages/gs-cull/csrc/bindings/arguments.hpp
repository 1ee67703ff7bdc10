// SPDX-License-Identifier: Apache-2.0
// Host arrays that several bound functions take. (For those of a device see addresses.hpp.)
#pragma once

#include <optional>
#include <vector>

#include "block_test.hpp"
#include "blocks_cpu.hpp"
#include "gs/error.hpp"
#include "gs/python/array.hpp"

namespace gs {
class ThreadPool;
}

namespace gs::cull {

/// The module's threads.
ThreadPool& pool();

/// Checked arrays of one call's Gaussians; keeps them alive. Destroy with the GIL held.
class GeometryArrays {
 public:
  /// means (N, 3), scales (N, 3), quats (N, 4), opacities (N,) or None: float32, contiguous.
  GeometryArrays(pybind11::handle means, pybind11::handle scales, pybind11::handle quats,
                 pybind11::handle opacities);

  std::int64_t n_rows() const { return means_.size(0); }
  Geometry view() const { return view_; }

 private:
  gs::python::Array means_, scales_, quats_;
  std::optional<gs::python::Array> opacities_;
  Geometry view_;
};

/// Checked arrays of Blocks: the tuple (n_rows, block_size, order | None, block_in_slot | None,
/// slot_of_block | None, views), where views is (blocks, words) from views_of_blocks. Keeps them
/// alive. Destroy with the GIL held.
class BlockArguments {
 public:
  BlockArguments(const pybind11::tuple& parts, std::int64_t n_views);

  std::int64_t n_rows() const { return n_rows_; }
  std::int32_t block_size() const { return block_size_; }
  std::int64_t n_blocks() const { return (n_rows_ + block_size_ - 1) / block_size_; }
  const std::int32_t* order() const { return order_; }
  /// Blocks in the arrays.
  std::int64_t n_resident() const { return n_resident_; }
  const std::int32_t* block_in_slot() const { return block_in_slot_; }
  const std::int32_t* slot_of_block() const { return slot_of_block_; }
  const std::uint32_t* views() const { return views_; }

 private:
  std::vector<gs::python::Array> arrays_;
  std::int64_t n_rows_, n_resident_;
  std::int32_t block_size_;
  const std::int32_t *order_ = nullptr, *block_in_slot_ = nullptr, *slot_of_block_ = nullptr;
  const std::uint32_t* views_ = nullptr;
};

/// Checked arrays of bounds: the tuple lower (blocks, 3), upper (blocks, 3), scale (blocks,), slack
/// (blocks, 2), not_finite (blocks,).
class BoundsArguments {
 public:
  explicit BoundsArguments(const pybind11::tuple& parts);
  std::int64_t size() const { return size_; }
  BoundsArrays view() const { return view_; }

 private:
  std::vector<gs::python::Array> arrays_;
  std::int64_t size_;
  BoundsArrays view_;
};

/// Which blocks to fit: the tuple (n_rows, block_size, order | None, blocks (n,), stored (n,)).
class BlockingArguments {
 public:
  explicit BlockingArguments(const pybind11::tuple& parts);
  std::int64_t size() const { return size_; }
  Blocking view() const { return view_; }
  const std::int32_t* blocks() const { return blocks_; }
  const std::int32_t* stored() const { return stored_; }

 private:
  std::vector<gs::python::Array> arrays_;
  std::int64_t size_;
  Blocking view_;
  const std::int32_t *blocks_, *stored_;
};

/// The camera of every view: viewmats (B, 4, 4), Ks (B, 3, 3), sizes (B, 6) float32 on the CPU.
/// Throws gs::Error naming the view for a pose that is not finite or singular intrinsics.
std::vector<Camera> host_cameras(pybind11::handle viewmats, pybind11::handle Ks,
                                 pybind11::handle sizes, const Options& options);

/// Throws gs::Error for what make_camera() found in a view.
void throw_fault(CameraFault fault, std::int64_t view);

/// Throws gs::Error where a row of (n, ceil(B / 32)) words has a bit that is no view's.
void check_stray_bits(const std::uint32_t* words, std::int64_t n, int n_views);

}  // namespace gs::cull
