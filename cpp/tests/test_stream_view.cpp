// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "check.hpp"
#include "gs/cuda/stream_view.hpp"

namespace {

using gs::cuda::StreamView;
using Stream = CUstream_st*;  // cudaStream_t, without a toolkit

// No stream comes from a 0, a nullptr or nothing, by whatever road.
static_assert(!std::is_default_constructible_v<StreamView>);
static_assert(!std::is_constructible_v<StreamView, int>);
static_assert(!std::is_constructible_v<StreamView, std::nullptr_t>);
static_assert(!std::is_constructible_v<StreamView, std::uintptr_t>);
static_assert(!std::is_constructible_v<StreamView, bool>);
static_assert(!std::is_assignable_v<StreamView&, int>);
static_assert(!std::is_assignable_v<StreamView&, std::nullptr_t>);

// A cudaStream_t must be wrapped by name, and nothing unwraps by itself.
static_assert(std::is_constructible_v<StreamView, Stream>);
static_assert(!std::is_convertible_v<Stream, StreamView>);
static_assert(!std::is_convertible_v<StreamView, Stream>);
static_assert(!std::is_convertible_v<StreamView, bool>);
static_assert(!std::is_convertible_v<StreamView, std::uintptr_t>);

// It costs what a cudaStream_t costs.
static_assert(std::is_trivially_copyable_v<StreamView>);
static_assert(sizeof(StreamView) == sizeof(Stream));

void handles_come_back_as_they_went_in() {
  for (const std::uintptr_t handle : {std::uintptr_t{0}, std::uintptr_t{2}, ~std::uintptr_t{15}}) {
    const StreamView stream = StreamView::from_handle(handle);
    CHECK(stream.handle() == handle);
    CHECK(stream.get() == reinterpret_cast<Stream>(handle));
    CHECK(stream == StreamView(stream.get()));
  }
  CHECK(StreamView::from_handle(64) != StreamView::from_handle(128));
}

void the_legacy_default_stream_is_handle_0() {
  CHECK(StreamView::legacy_default().handle() == 0);
  CHECK(StreamView::legacy_default() == StreamView::from_handle(0));
}

void three_handles_are_default_streams() {
  CHECK(StreamView::legacy_default().is_default());
  CHECK(StreamView::from_handle(1).is_default());  // cudaStreamLegacy
  CHECK(StreamView::from_handle(2).is_default());  // cudaStreamPerThread
  CHECK(!StreamView::from_handle(3).is_default());
}

}  // namespace

int main() {
  handles_come_back_as_they_went_in();
  the_legacy_default_stream_is_handle_0();
  three_handles_are_default_streams();
}
