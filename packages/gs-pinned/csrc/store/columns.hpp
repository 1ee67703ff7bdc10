// SPDX-License-Identifier: Apache-2.0
// The rows of a plane column by column, where columns repeat themselves or each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "store/format.hpp"

namespace gs::pinned::store {

/// How each column of a block's rows is stored, and the bytes of all.
struct ColumnPlan {
  std::vector<std::uint8_t> codes;
  std::size_t bytes = 0;
};

/// A plan that saves an eighth or more, else one without codes. `rows`: n rows, packed.
ColumnPlan plan_columns(const Plane& plane, const char* rows, std::size_t n);

/// Writes `plan.bytes` bytes to `to`.
void encode_columns(const Plane& plane, const ColumnPlan& plan, const char* rows, std::size_t n,
                    char* to);

/// Writes n rows to `rows`; null: only checks. False where `bytes` bytes at `from` are no such
/// columns; then rows are undefined.
bool decode_columns(const Plane& plane, const char* from, std::size_t bytes, std::size_t n,
                    char* rows);

}  // namespace gs::pinned::store
