// SPDX-License-Identifier: Apache-2.0
// What must not share memory with what: rows are copied in no order, and ids read meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "transfer.hpp"

namespace gs::pinned {

/// Some columns of every row of an array.
struct Columns {
  const char* data = nullptr;
  std::int64_t stride = 0, rows = 0, bytes = 0;  // stride and width in bytes

  static Columns of(const Ids& ids, std::int64_t n) {
    return {static_cast<const char*>(ids.data), ids.bytes_each(), n, ids.bytes_each()};
  }
};

/// Whether two of them may have memory in common. Not where the columns of one lie between those of
/// the other: all rows begin at one place, modulo what both strides are multiples of.
bool may_overlap(const Columns& a, const Columns& b);

// Each of these throws gs::Error, which names the argument.

/// Rows that are written must be apart.
void check_rows_apart(const Columns& rows, const char* name);

/// An array must not be written where one of the transfer's is.
void check_written_once(const Columns& array, const char* name, const Transfer& transfer);

/// Arrays and tables of an exchange: no two of them.
void check_all_apart(const std::vector<std::pair<std::string, Columns>>& named);

/// Memory that a transfer reads must not be what it writes.
void check_table_apart(const Transfer& transfer, const char* name);

/// Ids must not be written while they are read.
void check_ids_apart(const Ids& ids, std::int64_t n, const char* name, const Transfer& transfer);

}  // namespace gs::pinned
