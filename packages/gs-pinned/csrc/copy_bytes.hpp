// SPDX-License-Identifier: Apache-2.0
// Copies of short rows: inlined, and past the caches where the destination is large.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gs::pinned {

/// Asks for one cache line. kCache: 1 or 2, which cache it comes to. Not __builtin_prefetch: gcc
/// takes a function that does nothing else for one without effects and drops its calls.
template <int kCache>
void fetch_line(const char* at) {
#if defined(__x86_64__)
  if (kCache == 1)
    asm volatile("prefetcht0 %0" : : "m"(*at));
  else
    asm volatile("prefetcht1 %0" : : "m"(*at));
#elif defined(__aarch64__)
  if (kCache == 1)
    asm volatile("prfm pldl1keep, %0" : : "Q"(*at));
  else
    asm volatile("prfm pldl2keep, %0" : : "Q"(*at));
#else
  (void)at;
#endif
}

/// Asks for the cache lines of [data, data + bytes), the first few at most: the processor follows
/// a longer run by itself.
template <int kCache>
void fetch(const char* data, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64, kMost = 8 * kLine;
  const std::int64_t end = bytes < kMost ? bytes : kMost;
  const auto skew = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data) % kLine);
  for (std::int64_t at = -skew; at < end; at += kLine) fetch_line<kCache>(data + at);
}

/// Whether rows of `bytes`, `stride` apart from `to` on, can be written past the caches: as whole
/// cache lines, or one after the other.
inline bool can_stream(const char* to, std::int64_t bytes, std::int64_t stride, bool in_order) {
#if defined(__SSE2__)
  const auto address = reinterpret_cast<std::uintptr_t>(to);
  if (in_order && stride == bytes) return address % 16 == 0 && bytes % 16 == 0;
  return address % 64 == 0 && bytes % 64 == 0 && stride % 64 == 0;
#else
  (void)to, (void)bytes, (void)stride, (void)in_order;
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
