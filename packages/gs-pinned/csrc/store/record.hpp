// SPDX-License-Identifier: Apache-2.0
// A block's rows as one record of whole pages, and back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/format.hpp"

namespace gs::pinned::store {

/// Writes the record of `entry.rows` rows into `buffer`, which holds most_record_pages(), and fills
/// in the entry's pages and header_crc. `planes`: the block's rows of each plane, packed.
void encode_record(const Layout& layout, const std::vector<const char*>& planes, Entry* entry,
                   char* buffer);

/// Copies planes of the record in `buffer` to `planes`, null where a plane is not wanted. Returns
/// what is wrong with the record, or nothing; then nothing was copied. Looks at all of the record,
/// or at its first part alone (`is_head_alone`), of which `bytes` bytes are there.
std::string decode_record(const Layout& layout, const Entry& entry, const char* buffer,
                          std::size_t bytes, bool is_head_alone, const std::vector<char*>& planes);

/// Pages of a record that hold its head planes, at most.
std::uint32_t most_head_pages(const Layout& layout);

}  // namespace gs::pinned::store
