// SPDX-License-Identifier: Apache-2.0
// CRC32C, the checksum of the store (polynomial 0x1EDC6F41, reflected).
#pragma once

#include <cstddef>
#include <cstdint>

namespace gs::pinned::store {

/// The checksum of `bytes` bytes at `data`, continued from `crc`, the checksum of what came before.
/// By the processor's instruction where there is one (about 20 GB/s), by a table elsewhere.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t crc = 0);

/// The same by the table alone.
std::uint32_t crc32c_by_table(const void* data, std::size_t bytes, std::uint32_t crc = 0);

}  // namespace gs::pinned::store
