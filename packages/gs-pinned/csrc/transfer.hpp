// SPDX-License-Identifier: Apache-2.0
// Rows moved between one array of whole rows and one array per field.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gs::pinned {

enum class Element { kFloat32, kFloat16, kUint8, kInt32, kInt64 };

constexpr std::int64_t element_bytes(Element element) {
  switch (element) {
    case Element::kFloat16:
      return 2;
    case Element::kUint8:
      return 1;
    case Element::kInt64:
      return 8;
    default:
      return 4;
  }
}

/// Row numbers, all of one transfer of one width; without data, row i is row i itself.
struct Ids {
  const void* data = nullptr;  // (n,) int64 if wide, else int32
  bool wide = false;

  std::int64_t bytes_each() const { return wide ? 8 : 4; }
  /// The ids from the i-th on.
  Ids from(std::int64_t i) const {
    return data == nullptr ? *this : Ids{static_cast<const char*>(data) + i * bytes_each(), wide};
  }
};

/// An array that holds one field of each row.
struct Part {
  char* data = nullptr;     // (rows, bytes) with row stride `stride`
  std::int64_t stride = 0;  // bytes
  std::int64_t offset = 0;  // bytes from the start of a whole row
  std::int64_t bytes = 0;   // of the field
};

constexpr int kMaxParts = 16;
/// Kernels count the bytes of a row in 32 bits.
constexpr std::int64_t kMaxRowBytes = std::int64_t{1} << 30;

/// For i in [0, n): field by field, row whole_ids[i] of `whole` and row parts_ids[i] of `parts` are
/// copied one to the other, or the parts added to the whole. All pointers belong to the caller. The
/// rows written must be distinct.
struct Transfer {
  char* whole = nullptr;
  std::int64_t whole_stride = 0;  // bytes
  std::int64_t whole_rows = 0;
  std::int64_t row_bytes = 0;
  Ids whole_ids;
  Part parts[kMaxParts];
  int n_parts = 0;
  std::int64_t parts_rows = 0;
  Ids parts_ids;
  std::int64_t n = 0;
  bool to_parts = true;  // else parts to whole
  bool add = false;      // only parts to whole
  Element element = Element::kFloat32;

  /// Rows [first, first + count) of this transfer alone.
  Transfer piece(std::int64_t first, std::int64_t count) const;
};

/// Moves rows in host memory with all threads and returns when done. Trusts the ids.
void transfer_on_host(const Transfer& transfer);

/// Throws gs::RangeError unless every id is in [0, rows), gs::Error when `distinct` and one
/// repeats. Host memory.
void check_ids(Ids ids, std::int64_t n, std::int64_t rows, const char* name, bool distinct);

/// The first id outside [0, rows), or null: for where an exception can't be thrown.
bool find_bad_id(Ids ids, std::int64_t n, std::int64_t rows, std::int64_t* bad);

inline std::int64_t id_at(Ids ids, std::int64_t i) {
  if (ids.data == nullptr) return i;
  return ids.wide ? static_cast<const std::int64_t*>(ids.data)[i]
                  : static_cast<const std::int32_t*>(ids.data)[i];
}

}  // namespace gs::pinned
