// SPDX-License-Identifier: Apache-2.0
#include "transfer.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "copy_bytes.hpp"
#include "gs/error.hpp"
#include "half.hpp"
#include "pool.hpp"

namespace gs::pinned {
namespace {

constexpr std::int64_t kPieceBytes = 256 << 10;  // one thread's turn
// Reading runs this far ahead of copying, which hides the latency of rows in random places. A core
// has few lines on their way to its first-level cache and several times as many to its second:
// rows come there first.
constexpr std::int64_t kFarBytes = 5 << 10, kNearBytes = 1 << 10;
constexpr std::int64_t kMostAhead = 64;
// From here on the destination is written past the caches: it would not stay there anyway.
constexpr std::int64_t kStreamBytes = 8 << 20;

Part part_row(const Part& part, std::int64_t row) {
  Part one = part;
  one.data += row * part.stride;
  return one;
}

template <class T>
void add_elements(char* to, const char* from, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += static_cast<std::int64_t>(sizeof(T))) {
    T sum, term;
    std::memcpy(&sum, to + at, sizeof(T));
    std::memcpy(&term, from + at, sizeof(T));
    sum = static_cast<T>(sum + term);
    std::memcpy(to + at, &sum, sizeof(T));
  }
}

void add_halves(char* to, const char* from, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += 2) {
    std::uint16_t sum, term;
    std::memcpy(&sum, to + at, 2);
    std::memcpy(&term, from + at, 2);
    sum = float_to_half(half_to_float(sum) + half_to_float(term));
    std::memcpy(to + at, &sum, 2);
  }
}

void add_bytes(char* to, const char* from, std::int64_t bytes, Element element) {
  switch (element) {
    case Element::kFloat32:
      return add_elements<float>(to, from, bytes);
    case Element::kFloat16:
      return add_halves(to, from, bytes);
    case Element::kUint8:
      return add_elements<std::uint8_t>(to, from, bytes);
    // Unsigned, because sums wrap around.
    case Element::kInt32:
      return add_elements<std::uint32_t>(to, from, bytes);
    case Element::kInt64:
      return add_elements<std::uint64_t>(to, from, bytes);
  }
}

std::int64_t rows_ahead(const Transfer& t, std::int64_t bytes) {
  return std::clamp<std::int64_t>(bytes / t.row_bytes, 1, kMostAhead);
}

// What a transfer reads, or writes through the caches, and its processor does not foresee: rows
// without ids follow one another.
struct Fetching {
  bool whole, parts;

  Fetching(const Transfer& t, bool stream)
      : whole(t.whole_ids.data != nullptr && (t.to_parts || !stream)),
        parts(t.parts_ids.data != nullptr && (!t.to_parts || !stream)) {}

  template <int kCache>
  void row(const Transfer& t, std::int64_t i) const {
    if (whole) fetch<kCache>(t.whole + id_at(t.whole_ids, i) * t.whole_stride, t.row_bytes);
    if (!parts) return;
    for (int k = 0; k < t.n_parts; ++k)
      fetch<kCache>(part_row(t.parts[k], id_at(t.parts_ids, i)).data, t.parts[k].bytes);
  }
};

// Rows [first, last) of a transfer, on one thread.
void move_rows(const Transfer& t, std::int64_t first, std::int64_t last, bool stream) {
  const std::int64_t far = rows_ahead(t, kFarBytes), near = rows_ahead(t, kNearBytes);
  const Fetching fetching(t, stream);
  for (std::int64_t i = first; i < std::min(first + far, last); ++i) fetching.row<2>(t, i);
  for (std::int64_t i = first; i < last; ++i) {
    if (i + far < last) fetching.row<2>(t, i + far);
    if (i + near < last) fetching.row<1>(t, i + near);
    char* const whole = t.whole + id_at(t.whole_ids, i) * t.whole_stride;
    const std::int64_t row = id_at(t.parts_ids, i);
    for (int k = 0; k < t.n_parts; ++k) {
      const Part part = part_row(t.parts[k], row);
      char* const field = whole + part.offset;
      if (t.add)
        add_bytes(field, part.data, part.bytes, t.element);
      else if (t.to_parts)
        copy_bytes(part.data, field, part.bytes, stream);
      else
        copy_bytes(field, part.data, part.bytes, stream);
    }
  }
  if (stream) finish_streaming();
}

// Whether the destination is large and made of whole lines.
bool should_stream(const Transfer& t) {
  if (t.add || t.n_parts != 1 || t.n * t.row_bytes < kStreamBytes) return false;
  const Part& part = t.parts[0];
  return t.to_parts ? can_stream(part.data, part.bytes, part.stride, t.parts_ids.data == nullptr)
                    : can_stream(t.whole + part.offset, part.bytes, t.whole_stride,
                                 t.whole_ids.data == nullptr);
}

// Few long rows: each is cut into slices so that all threads have work.
void move_long_rows(const Transfer& t, std::int64_t slices) {
  const Part& part = t.parts[0];
  const std::int64_t step = (part.bytes + slices - 1) / slices;
  pool().parallel_for(0, t.n * slices, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t unit = first; unit < last; ++unit) {
      const std::int64_t i = unit / slices, begin = std::min(unit % slices * step, part.bytes);
      const std::int64_t bytes = std::min(step, part.bytes - begin);
      char* whole = t.whole + id_at(t.whole_ids, i) * t.whole_stride + part.offset + begin;
      char* field = part_row(part, id_at(t.parts_ids, i)).data + begin;
      std::memcpy(t.to_parts ? field : whole, t.to_parts ? whole : field, bytes);
    }
  });
}

template <class T>
bool all_inside(Ids ids, std::int64_t first, std::int64_t last, std::int64_t rows) {
  const T* const values = static_cast<const T*>(ids.data);
  bool outside = false;
  for (std::int64_t i = first; i < last; ++i) outside |= values[i] < 0 || values[i] >= rows;
  return !outside;
}

}  // namespace

Transfer Transfer::piece(std::int64_t first, std::int64_t count) const {
  Transfer one = *this;
  one.n = count;
  one.whole_ids = whole_ids.from(first);
  one.parts_ids = parts_ids.from(first);
  if (whole_ids.data == nullptr) {
    one.whole += first * whole_stride;
    one.whole_rows -= first;
  }
  if (parts_ids.data == nullptr) {
    for (int k = 0; k < n_parts; ++k) one.parts[k].data += first * parts[k].stride;
    one.parts_rows -= first;
  }
  return one;
}

void transfer_on_host(const Transfer& t) {
  if (t.n == 0 || t.n_parts == 0) return;
  const std::int64_t slices = t.parts[0].bytes / kPieceBytes;
  if (slices > 1 && t.n_parts == 1 && !t.add) return move_long_rows(t, slices);
  const bool stream = should_stream(t);
  pool().parallel_for(
      0, t.n, std::max<std::int64_t>(1, kPieceBytes / t.row_bytes),
      [&](std::int64_t first, std::int64_t last) { move_rows(t, first, last, stream); });
}

bool find_bad_id(Ids ids, std::int64_t n, std::int64_t rows, std::int64_t* bad) {
  if (ids.data == nullptr) return false;
  std::atomic<std::int64_t> found{n};
  pool().parallel_for(0, n, 1 << 16, [&](std::int64_t first, std::int64_t last) {
    const bool good = ids.wide ? all_inside<std::int64_t>(ids, first, last, rows)
                               : all_inside<std::int32_t>(ids, first, last, rows);
    if (good) return;
    std::int64_t i = first;
    while (id_at(ids, i) >= 0 && id_at(ids, i) < rows) ++i;
    std::int64_t earliest = found.load();
    while (i < earliest && !found.compare_exchange_weak(earliest, i)) {
    }
  });
  if (found == n) return false;
  *bad = id_at(ids, found);
  return true;
}

void check_ids(Ids ids, std::int64_t n, std::int64_t rows, const char* name, bool distinct) {
  std::int64_t bad = 0;
  if (find_bad_id(ids, n, rows, &bad))
    detail::throw_error<RangeError>(name, " must lie in [0, ", rows, "), got ", bad);
  if (!distinct || ids.data == nullptr) return;
  std::atomic<bool> increasing{true};
  pool().parallel_for(1, n, 1 << 16, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
      if (id_at(ids, i - 1) >= id_at(ids, i)) increasing = false;
  });
  if (increasing) return;
  std::vector<std::int64_t> sorted(n);
  for (std::int64_t i = 0; i < n; ++i) sorted[i] = id_at(ids, i);
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  GS_CHECK(twice == sorted.end(), name, " must be distinct, got ", *twice, " more than once");
}

}  // namespace gs::pinned
