// SPDX-License-Identifier: Apache-2.0
// Copies of short rows: inlined, and past the caches where the destination is large.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gs::pinned {

/// Asks for the cache lines of [data, data + bytes), the first few at most: the processor follows
/// a longer run by itself.
inline void fetch(const char* data, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64, kMost = 8 * kLine;
  const std::int64_t end = bytes < kMost ? bytes : kMost;
  for (std::int64_t at = 0; at < end; at += kLine) __builtin_prefetch(data + at);
  __builtin_prefetch(data + end - 1);
}

/// Whether rows of `bytes` laid densely from `to` on can be written past the caches.
inline bool can_stream(const char* to, std::int64_t bytes) {
#if defined(__SSE2__)
  return reinterpret_cast<std::uintptr_t>(to) % 16 == 0 && bytes % 16 == 0;
#else
  (void)to, (void)bytes;
  return false;
#endif
}

/// memcpy; with `stream`, which needs can_stream, past the caches.
inline void copy_bytes(char* to, const char* from, std::int64_t bytes, bool stream) {
#if defined(__SSE2__)
  constexpr std::int64_t kLong = 1024;  // from here on the library's copy is as good
  if (stream) {
    for (std::int64_t at = 0; at < bytes; at += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
    return;
  }
  if (bytes < kLong) {
    std::int64_t at = 0;
    for (; at + 16 <= bytes; at += 16)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
    for (; at < bytes; ++at) to[at] = from[at];
    return;
  }
#else
  (void)stream;
#endif
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

/// Orders streamed bytes before what other threads are told next.
inline void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace gs::pinned
