// SPDX-License-Identifier: Apache-2.0
// Work that comes again with the same arguments, replayed by one launch.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "gs/cuda/check.hpp"
#include "gs/cuda/stream_view.hpp"

namespace gs::raster {

/// CUDA graphs of work by its arguments. Work is enqueued plainly the first time, which also loads
/// its kernels, and is captured the second time. A graph is a function of addresses: it holds no
/// memory of the arrays that it reads and writes. The driver has memory for each of a graph's
/// launches: few graphs are kept.
class GraphCache {
 public:
  /// All that the launches depend on.
  using Key = std::array<std::uint64_t, 4>;

  GraphCache() = default;
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;
  ~GraphCache() {
    for (const auto& [key, known] : known_) destroy(known);
  }

  std::size_t size() const {
    const std::lock_guard guard(mutex_);
    return known_.size();
  }

  /// Enqueues what `enqueue(stream)` enqueues.
  template <class Enqueue>
  void run(const Key& key, cuda::StreamView stream, const Enqueue& enqueue) {
    const std::lock_guard guard(mutex_);
    ++turn_;
    const auto found = known_.find(key);
    if (found == known_.end() || is_capturing(stream)) {
      enqueue(stream);
      if (known_.size() >= kMost) forget_oldest();
      if (known_.size() < kMost) known_.try_emplace(key, Known{nullptr, turn_});
      return;
    }
    Known& known = found->second;
    if (known.graph == nullptr) known.graph = captured(enqueue);
    known.last_turn = turn_;
    if (known.graph == nullptr) return enqueue(stream);
    const cudaError_t status = cudaGraphLaunch(known.graph, stream.get());
    if (is_short_of_memory(status)) return enqueue(stream);
    GS_CUDA_TRY(status);
  }

 private:
  static constexpr std::size_t kMost = 128;
  // Work that came later than so many turns ago keeps its graph: where more takes turns than can be
  // kept, some of it is captured once and the rest never.
  static constexpr std::uint64_t kKept = 4096;

  struct Known {
    cudaGraphExec_t graph;  // none: the work came once
    std::uint64_t last_turn;
  };

  static bool is_capturing(cuda::StreamView stream) {
    cudaStreamCaptureStatus status{};
    GS_CUDA_TRY(cudaStreamIsCapturing(stream.get(), &status));
    return status != cudaStreamCaptureStatusNone;
  }

  /// A graph takes memory of the driver's, which others may hold. Work that has none is enqueued
  /// plainly.
  static bool is_short_of_memory(cudaError_t status) {
    if (status != cudaErrorMemoryAllocation) return false;
    (void)cudaGetLastError();  // which would be met again
    return true;
  }

  /// On a stream of its own: the caller's may be a default stream, which cannot be captured. Null
  /// where memory does not suffice.
  template <class Enqueue>
  static cudaGraphExec_t captured(const Enqueue& enqueue) {
    struct Stream {
      Stream() { GS_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
      ~Stream() { (void)cudaStreamDestroy(stream); }
      cudaStream_t stream = nullptr;
    } const own;
    GS_CUDA_TRY(cudaStreamBeginCapture(own.stream, cudaStreamCaptureModeRelaxed));
    cudaGraph_t graph = nullptr;
    try {
      enqueue(cuda::StreamView(own.stream));
    } catch (...) {
      (void)cudaStreamEndCapture(own.stream, &graph);  // which gives no graph
      throw;
    }
    GS_CUDA_TRY(cudaStreamEndCapture(own.stream, &graph));
    cudaGraphExec_t executable = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
    (void)cudaGraphDestroy(graph);
    if (is_short_of_memory(status)) return nullptr;
    GS_CUDA_TRY(status);
    return executable;
  }

  /// A graph that is on its way ends first.
  static void destroy(const Known& known) {
    if (known.graph != nullptr) (void)cudaGraphExecDestroy(known.graph);
  }

  void forget_oldest() {
    const auto oldest = std::min_element(known_.begin(), known_.end(), [](auto& a, auto& b) {
      return a.second.last_turn < b.second.last_turn;
    });
    if (turn_ - oldest->second.last_turn <= kKept) return;
    destroy(oldest->second);
    known_.erase(oldest);
  }

  std::map<Key, Known> known_;
  std::uint64_t turn_ = 0;
  mutable std::mutex mutex_;
};

}  // namespace gs::raster
