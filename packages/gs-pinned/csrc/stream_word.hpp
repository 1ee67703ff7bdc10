// SPDX-License-Identifier: Apache-2.0
// A 32-bit word in page-locked memory that streams write and wait for; compiled only with CUDA.
#pragma once

#include <cstdint>

#include "gs/cuda/stream_view.hpp"

namespace gs::pinned {

/// Enqueues: word = value, after everything before it on the stream is visible to the host. By a
/// stream memory operation of the driver, or a kernel of one thread where there is none.
void write_word_on(std::uint32_t* word, std::uint32_t value, int device, cuda::StreamView stream);

/// Enqueues: hold the stream until word >= value, compared as int32(word - value) >= 0.
void wait_word_on(std::uint32_t* word, std::uint32_t value, int device, cuda::StreamView stream);

/// Loads the kernels of the current device; see load_kernels.
void load_word_kernels();

/// false makes both use kernels, for the whole process; for tests of that way.
void use_stream_operations(bool enabled);

}  // namespace gs::pinned
