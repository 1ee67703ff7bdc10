// SPDX-License-Identifier: Apache-2.0
// A stream as a typed value. Needs no CUDA toolkit, so that declarations are the same in every
// build.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;  // CUDA's own: cudaStream_t and CUstream are pointers to it

namespace gs::cuda {

/// A stream that somebody else owns and keeps alive. Made from a cudaStream_t or from the integer
/// that crosses from Python, and from nothing else: the legacy default stream, which waits for all
/// others of its device, has the handle 0, so a 0, a nullptr or a forgotten argument must not
/// compile.
class StreamView {
 public:
  explicit constexpr StreamView(CUstream_st* stream) noexcept : stream_(stream) {}
  StreamView(int) = delete;
  StreamView(std::nullptr_t) = delete;

  /// The stream of a handle, such as torch's `Stream.cuda_stream`. 0 is the legacy default stream.
  static StreamView from_handle(std::uintptr_t handle) noexcept {
    return StreamView(reinterpret_cast<CUstream_st*>(handle));
  }
  static StreamView legacy_default() noexcept { return from_handle(0); }

  constexpr CUstream_st* get() const noexcept { return stream_; }
  std::uintptr_t handle() const noexcept { return reinterpret_cast<std::uintptr_t>(stream_); }

  /// One of the handles that stand for a default stream, legacy or per thread, of whatever device
  /// is current.
  bool is_default() const noexcept {
    constexpr std::uintptr_t kPerThread = 2;  // cudaStreamPerThread; cudaStreamLegacy is 1
    return handle() <= kPerThread;
  }

 private:
  CUstream_st* stream_;
};

inline bool operator==(StreamView a, StreamView b) noexcept { return a.get() == b.get(); }
inline bool operator!=(StreamView a, StreamView b) noexcept { return !(a == b); }

}  // namespace gs::cuda
