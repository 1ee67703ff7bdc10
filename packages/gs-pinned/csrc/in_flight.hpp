// SPDX-License-Identifier: Apache-2.0
// Work on streams that still reads or writes a piece of host memory.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "gs/cuda/stream_view.hpp"

namespace gs::pinned {

/// One event per stream, recorded after the stream's latest use. Streams may be destroyed while
/// their work goes on. Thread-safe. Empty, and free, in a build without CUDA.
class InFlight {
 public:
  InFlight() = default;
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;
  ~InFlight();

  /// Everything on `stream` up to now uses the memory. `device` is the stream's. False, and nothing
  /// is noted, while the stream is captured into a graph.
  bool record(int device, cuda::StreamView stream);

  /// Makes later work on `stream` wait for every recorded use.
  void order_after(int device, cuda::StreamView stream);

  /// Blocks until every recorded use has ended. Quiet about errors of the device: it is called
  /// where nothing can be done about them, and the next CUDA call reports them again.
  void wait() noexcept;

  /// Whether some recorded use has not ended, or another thread records or asks. Never blocks.
  bool busy();

  /// Throws gs::CudaError when a recorded use has failed. Does not look while another thread
  /// records.
  void raise_errors();

  /// Forgets every use without asking CUDA about it: for a child process after fork.
  void forget() noexcept;

 private:
  struct Use {
    int device;
    std::uint64_t number;  // of the stream
    void* event;           // cudaEvent_t
  };
  std::mutex mutex_;
  std::vector<Use> uses_;
};

}  // namespace gs::pinned
