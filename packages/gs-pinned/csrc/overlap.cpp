// SPDX-License-Identifier: Apache-2.0
#include "overlap.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "gs/error.hpp"

namespace gs::pinned {
namespace {

const char* begin_of(const Columns& c) {
  return std::min(c.data, c.data + c.stride * (c.rows - 1));
}

const char* end_of(const Columns& c) {
  return std::max(c.data, c.data + c.stride * (c.rows - 1)) + c.bytes;
}

Columns table_columns(const Transfer& t, const Part& part) {
  return {t.whole + part.offset, t.whole_stride, t.whole_rows, part.bytes};
}

Columns array_columns(const Transfer& t, const Part& part) {
  return {part.data, part.stride, t.parts_rows, part.bytes};
}

bool is_written(const Columns& columns, const Transfer& t) {
  return std::any_of(t.parts, t.parts + t.n_parts, [&](const Part& part) {
    return may_overlap(columns, t.to_parts ? array_columns(t, part) : table_columns(t, part));
  });
}

}  // namespace

bool may_overlap(const Columns& a, const Columns& b) {
  if (a.rows < 1 || b.rows < 1 || begin_of(a) >= end_of(b) || begin_of(b) >= end_of(a))
    return false;
  const std::int64_t period = std::gcd(a.stride, b.stride);
  if (period == 0) return true;
  const std::int64_t apart = (b.data - a.data) % period;
  const std::int64_t column = apart < 0 ? apart + period : apart;
  return column < a.bytes || column + b.bytes > period;
}

void check_rows_apart(const Columns& rows, const char* name) {
  GS_CHECK(rows.rows <= 1 || std::abs(rows.stride) >= rows.bytes, name,
           " must have rows that do not overlap, got rows of ", rows.bytes, " bytes ", rows.stride,
           " bytes apart");
}

void check_written_once(const Columns& array, const char* name, const Transfer& transfer) {
  GS_CHECK(!is_written(array, transfer), name, " must be arrays that share no memory");
}

void check_all_apart(const std::vector<std::pair<std::string, Columns>>& named) {
  for (auto one = named.begin(); one != named.end(); ++one)
    for (auto other = named.begin(); other != one; ++other)
      GS_CHECK(!may_overlap(one->second, other->second), other->first, " and ", one->first,
               " must not share memory");
}

void check_table_apart(const Transfer& transfer, const char* name) {
  // Nor may one part's array be another part's columns: which is written first is not said.
  const Part* const end = transfer.parts + transfer.n_parts;
  for (const Part* part = transfer.parts; part < end; ++part)
    for (const Part* other = transfer.parts; other < end; ++other)
      GS_CHECK(!may_overlap(table_columns(transfer, *part), array_columns(transfer, *other)), name,
               " must not share memory with the table");
}

void check_ids_apart(const Ids& ids, std::int64_t n, const char* name, const Transfer& transfer) {
  GS_CHECK(ids.data == nullptr || !is_written(Columns::of(ids, n), transfer), name,
           " must not share memory with what is written");
}

}  // namespace gs::pinned
