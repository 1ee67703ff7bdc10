// SPDX-License-Identifier: Apache-2.0
// Rows given by a mask instead of their ids.
#pragma once

#include <cstdint>

namespace gs::adam {

/// How many of n rows a mask of bytes, 0 or 1, chooses.
std::int64_t count_rows(const std::uint8_t* mask, std::int64_t n);

/// Writes their ids in order, count_rows of them.
void write_rows(const std::uint8_t* mask, std::int64_t n, std::int32_t* ids);

}  // namespace gs::adam
