// SPDX-License-Identifier: Apache-2.0
// Where the words of signals lie.
#pragma once

#include <cstdint>

namespace gs::pinned {

/// A zero word on a cache line of its own, page-locked where the process uses a CUDA device, valid
/// to the end of the process. `locked` asks for the locking, by way of `device`. Throws
/// gs::MemoryError.
std::uint32_t* take_word(bool locked, int device);

/// Gives a word back. Only when no stream and no thread can touch it any more; otherwise it is
/// simply kept: a cache line lost is better than a stray write into somebody else's signal.
void give_word(std::uint32_t* word, bool locked);

}  // namespace gs::pinned
