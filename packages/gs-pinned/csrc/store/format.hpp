// SPDX-License-Identifier: Apache-2.0
// What lies on disk, to the byte (docs/store-format.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gs::pinned::store {

constexpr std::size_t kPage = 4096;
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kSnapshotHeader = 64;
constexpr std::size_t kMostPlanes = 48;
constexpr std::size_t kMostNameBytes = 40, kMostDtypeBytes = 12;
constexpr std::uint32_t kMostBlockRows = 65535;
constexpr std::uint32_t kMostRecordPages = 65535;
constexpr std::uint32_t kMostBlocks = 1u << 26;
constexpr std::uint32_t kMostSegments = 1u << 16;
constexpr std::uint32_t kMostSegmentPages = 1u << 31;

using Identity = std::array<unsigned char, 16>;

/// A column group of the table: `columns` values of one dtype in every row.
struct Plane {
  std::string name;
  std::string dtype;
  std::uint32_t columns = 0;
  std::uint32_t row_bytes = 0;
  bool is_head = false;
};

/// What every file of a store agrees on: the content of STORE.
struct Layout {
  Identity identity{};
  std::uint32_t block_rows = 0;
  std::uint32_t segment_pages = 0;
  std::vector<Plane> planes;

  /// Pages of a record in which no plane is made smaller.
  std::uint32_t most_record_pages() const;
};

/// Where a block's record lies, and what its header must say: an entry of a snapshot.
struct Entry {
  std::uint32_t block = 0;
  std::uint32_t step = 0;
  std::uint64_t seq = 0;
  std::uint32_t segment = 0;
  std::uint32_t page = 0;
  std::uint16_t pages = 0;  // 0: no record
  std::uint16_t rows = 0;
  std::uint32_t header_crc = 0;
};
static_assert(sizeof(Entry) == 32);

struct Snapshot {
  std::uint32_t number = 0;
  std::uint64_t seq = 0;
  std::vector<Entry> entries;  // by rising block
  std::string state;
};

/// The bytes of values that lie one after the other.
template <typename Container>
std::string_view bytes_of(const Container& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(*values.data())};
}

/// The decoders throw CorruptError, which begins with `path`.
std::vector<char> encode_layout(const Layout& layout);
Layout decode_layout(const std::vector<char>& bytes, const std::string& path);

/// What a snapshot's file has before its entries and, behind these, its state.
std::array<char, kSnapshotHeader> encode_snapshot_header(const Snapshot& snapshot,
                                                         std::string_view state,
                                                         const Identity& identity);
Snapshot decode_snapshot(const std::vector<char>& bytes, const Identity& identity,
                         const std::string& path);

/// One page.
void encode_segment(char* page, std::uint32_t number, const Identity& identity);
/// Empty, or what is wrong.
std::string check_segment(const char* page, std::uint32_t number, const Identity& identity);

std::string hex(const Identity& identity);

}  // namespace gs::pinned::store
