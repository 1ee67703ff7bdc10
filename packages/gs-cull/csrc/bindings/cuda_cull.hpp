// SPDX-License-Identifier: Apache-2.0
// One cull on a device: what is enqueued in which order, and where in the workspace it works.
#pragma once

#include <optional>

#include "bindings/addresses.hpp"
#include "bindings/arguments.hpp"
#include "blocks_cuda.hpp"
#include "gs/cuda/check.hpp"
#include "gs/python/gil.hpp"

namespace gs::cull {

/// The head of every workspace: Totals, a ticket, then the cameras.
class ViewWorkspace {
 public:
  static std::int64_t words(std::int64_t n_views) {
    const auto cameras = n_views * static_cast<std::int64_t>(sizeof(Camera) / 4);
    return kTotals + kTicket + (cameras + 3) / 4 * 4;
  }

  ViewWorkspace(Address base, int n_views) : base_(at<std::int32_t>(base)), n_views_(n_views) {}

  Totals* totals() const { return reinterpret_cast<Totals*>(base_); }
  std::uint32_t* ticket() const { return reinterpret_cast<std::uint32_t*>(base_ + kTotals); }
  Camera* cameras() const { return reinterpret_cast<Camera*>(base_ + kTotals + kTicket); }

  /// Zeroes the head and `more` words after it, and fills the cameras.
  void prepare(const ViewsAt& views, const Options& options, std::int64_t more,
               cuda::StreamView stream) const {
    const auto n_bytes = static_cast<std::size_t>(4 * (words(n_views_) + more));
    GS_CUDA_TRY(cudaMemsetAsync(base_, 0, n_bytes, stream.get()));
    prepare_cameras(views.viewmats(), views.Ks(), views.sizes(), n_views_, options, cameras(),
                    totals(), stream);
  }

  /// Waits for the stream, and for nothing else: `host` is page-locked.
  Totals read(Totals* host, cuda::StreamView stream) const {
    GS_CUDA_TRY(
        cudaMemcpyAsync(host, totals(), sizeof(Totals), cudaMemcpyDeviceToHost, stream.get()));
    GS_CUDA_TRY(cudaStreamSynchronize(stream.get()));
    return *host;
  }

 private:
  static constexpr std::int64_t kTotals = sizeof(Totals) / 4, kTicket = 4;
  std::int32_t* base_;
  int n_views_;
};

/// mark(), then write() into arrays of the size that mark() found.
class CudaCull {
 public:
  CudaCull(const RowsAt& rows, const ViewsAt& views, const std::optional<LayoutAt>& blocks,
           const Options& options, int device, cuda::StreamView stream)
      : rows_(rows), views_(views), options_(options), device_(device), stream_(stream) {
    // Without blocks, small ones fill the device even when the scene is small.
    constexpr std::int32_t kBlock = 256;
    const std::int64_t n = rows.n_rows();
    layout_ = {n, kBlock, (n + kBlock - 1) / kBlock, nullptr, nullptr, nullptr, nullptr};
    if (!blocks) return;
    layout_ = blocks->layout();
    bounds_ = blocks->bounds();
  }

  /// Words of the workspace: the head, a bit per row, ids before each chunk of bits, and the views
  /// of each block.
  std::int64_t n_words() const { return block_views_at() + n_block_words(); }

  /// Finds the union of all views. totals: page-locked host memory. Waits for the stream, then
  /// throws for a faulty camera. Returns the union's size and the rows that are not finite.
  std::pair<std::int32_t, std::int32_t> mark(Address workspace, Address totals) {
    {
      const gs::python::ReleaseGil unlocked;
      const gs::cuda::DeviceGuard guard(device_);
      base_ = at<std::int32_t>(workspace);
      const ViewWorkspace head = this->head();
      head.prepare(views_, options_, mark_words(), stream_);
      if (bounds_) {
        auto* const views = reinterpret_cast<std::uint32_t*>(base_ + block_views_at());
        views_of_blocks(bounds_->arrays(), bounds_->n_blocks(), head.cameras(), n_views(), options_,
                        layout_.slot_of_block, views, &head.totals()->n_not_finite, stream_);
        layout_.block_views = views;
      }
      mark_visible(rows_.geometry(), layout_, head.cameras(), n_views(), options_, bits(),
                   base_ + chunks_at(), head.ticket(), head.totals(), stream_);
      found_ = head.read(at<Totals>(totals), stream_);
    }
    throw_fault(static_cast<CameraFault>(found_.fault), found_.fault_view);
    return {found_.n_visible, found_.n_not_finite};
  }

  /// ids: (U,), mask: (U, words), counts: (B,). The workspace must still be as mark() left it.
  void write(Address ids, Address mask, Address counts) const {
    const gs::python::ReleaseGil unlocked;
    const gs::cuda::DeviceGuard guard(device_);
    auto* const id = at<std::int32_t>(ids);
    auto* const word = at<std::uint32_t>(mask);
    auto* const count = at<std::int32_t>(counts);
    const bool alone = n_views() == 1 && found_.n_visible > 0;
    if (!alone && n_views() > 0)
      GS_CUDA_TRY(cudaMemsetAsync(count, 0, sizeof(std::int32_t) * n_views(), stream_.get()));
    write_ids(bits(), base_ + chunks_at(), layout_.n_rows, found_.n_visible, id,
              alone ? word : nullptr, alone ? count : nullptr, stream_);
    if (!alone)
      write_mask(rows_.geometry(), layout_, head().cameras(), n_views(), options_, id,
                 found_.n_visible, word, count, stream_);
  }

 private:
  int n_views() const { return views_.n_views(); }
  ViewWorkspace head() const { return {reinterpret_cast<Address>(base_), n_views()}; }
  std::int64_t mark_words() const { return (layout_.n_rows + 31) / 32; }
  std::int64_t chunks_at() const { return ViewWorkspace::words(n_views()) + mark_words(); }
  std::int64_t block_views_at() const { return chunks_at() + visible_chunks(layout_.n_rows); }
  std::int64_t n_block_words() const {
    return bounds_ ? bounds_->n_blocks() * ((n_views() + 31) / 32) : 0;
  }
  std::uint32_t* bits() const {
    return reinterpret_cast<std::uint32_t*>(base_ + ViewWorkspace::words(n_views()));
  }

  RowsAt rows_;
  ViewsAt views_;
  Options options_;
  int device_;
  cuda::StreamView stream_;
  Layout layout_;
  std::optional<BoundsAt> bounds_;
  std::int32_t* base_ = nullptr;
  Totals found_ = {};
};

}  // namespace gs::cull
