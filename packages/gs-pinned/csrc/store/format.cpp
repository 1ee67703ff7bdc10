// SPDX-License-Identifier: Apache-2.0
#include "store/format.hpp"

#include <algorithm>
#include <cstring>

#include "store/bytes.hpp"
#include "store/crc32c.hpp"
#include "store/errors.hpp"

namespace gs::pinned::store {
namespace {

constexpr char kStoreMagic[9] = "GSBLOCKS", kSegmentMagic[9] = "GSSEGMNT",
               kSnapshotMagic[9] = "GSSNAPSH";
constexpr std::size_t kPlanesAt = 64, kPlaneBytes = 64;

#define GS_INTACT(condition, ...) GS_CHECK_AS(pinned::store::CorruptError, condition, __VA_ARGS__)

/// Throws VersionError where a file with a valid checksum is of another version.
void check_version(const char* data, const std::string& path) {
  const auto version = get<std::uint32_t>(data, 8);
  GS_CHECK_AS(pinned::store::VersionError, version == kVersion, path, " must have version ",
              kVersion, ", got ", version);
}

void put_text(char* data, std::size_t offset, const std::string& text) {
  std::memcpy(data + offset, text.data(), text.size());
}

std::string get_text(const char* data, std::size_t offset, std::size_t most) {
  return {data + offset, strnlen(data + offset, most)};
}

void seal_page(char* page) { put(page, kPage - 4, crc32c(page, kPage - 4)); }

bool is_sealed(const char* page) {
  return get<std::uint32_t>(page, kPage - 4) == crc32c(page, kPage - 4);
}

}  // namespace

std::string hex(const Identity& identity) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : identity) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::uint32_t Layout::most_record_pages() const {
  std::uint64_t head = 512, tail = 0;
  for (const Plane& plane : planes) {
    const std::uint64_t bytes = std::uint64_t{plane.row_bytes} * block_rows;
    (plane.is_head ? head : tail) += (bytes + 63) / 64 * 64;
  }
  const std::uint64_t pages = (head + kPage - 1) / kPage + (tail + kPage - 1) / kPage;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(pages, UINT32_MAX));
}

std::vector<char> encode_layout(const Layout& layout) {
  std::vector<char> page(kPage);
  put_text(page.data(), 0, kStoreMagic);
  put(page.data(), 8, kVersion);
  put(page.data(), 12, layout.block_rows);
  put(page.data(), 16, layout.identity);
  put(page.data(), 32, layout.segment_pages);
  put(page.data(), 36, static_cast<std::uint32_t>(layout.planes.size()));
  char* at = page.data() + kPlanesAt;
  for (const Plane& plane : layout.planes) {
    put_text(at, 0, plane.name);
    put_text(at, kMostNameBytes, plane.dtype);
    put(at, 52, plane.columns);
    put(at, 56, plane.row_bytes);
    put(at, 60, std::uint32_t{plane.is_head});
    at += kPlaneBytes;
  }
  seal_page(page.data());
  return page;
}

Layout decode_layout(const std::vector<char>& bytes, const std::string& path) {
  GS_INTACT(bytes.size() == kPage, path, " must have ", kPage, " bytes, got ", bytes.size());
  const char* data = bytes.data();
  GS_INTACT(std::memcmp(data, kStoreMagic, 8) == 0, path, " is no store of blocks");
  GS_INTACT(is_sealed(data), path, " is damaged: its checksum does not hold");
  check_version(data, path);
  Layout layout;
  layout.block_rows = get<std::uint32_t>(data, 12);
  layout.identity = get<Identity>(data, 16);
  layout.segment_pages = get<std::uint32_t>(data, 32);
  const auto n = get<std::uint32_t>(data, 36);
  GS_INTACT(n > 0 && n <= kMostPlanes, path, " is damaged: it has ", n, " planes");
  for (std::uint32_t i = 0; i < n; ++i) {
    const char* at = data + kPlanesAt + i * kPlaneBytes;
    layout.planes.push_back(
        {get_text(at, 0, kMostNameBytes), get_text(at, kMostNameBytes, kMostDtypeBytes),
         get<std::uint32_t>(at, 52), get<std::uint32_t>(at, 56), get<std::uint32_t>(at, 60) != 0});
  }
  return layout;
}

void encode_segment(char* page, std::uint32_t number, const Identity& identity) {
  std::memset(page, 0, kPage);
  put_text(page, 0, kSegmentMagic);
  put(page, 8, kVersion);
  put(page, 12, number);
  put(page, 16, identity);
  seal_page(page);
}

std::string check_segment(const char* page, std::uint32_t number, const Identity& identity) {
  if (std::memcmp(page, kSegmentMagic, 8) != 0 || !is_sealed(page)) return "its header is damaged";
  const Identity found = get<Identity>(page, 16);
  if (found != identity) return "it belongs to store " + hex(found) + ", not to " + hex(identity);
  const auto found_number = get<std::uint32_t>(page, 12);
  if (found_number != number) return "it is segment " + std::to_string(found_number);
  return "";
}

std::array<char, kSnapshotHeader> encode_snapshot_header(const Snapshot& snapshot,
                                                         std::string_view state,
                                                         const Identity& identity) {
  std::array<char, kSnapshotHeader> bytes{};
  const std::string_view entries = bytes_of(snapshot.entries);
  char* data = bytes.data();
  put_text(data, 0, kSnapshotMagic);
  put(data, 8, kVersion);
  put(data, 12, snapshot.number);
  put(data, 16, identity);
  put(data, 32, snapshot.seq);
  put(data, 40, std::uint64_t{snapshot.entries.size()});
  put(data, 48, std::uint64_t{state.size()});
  put(data, 56, crc32c(state.data(), state.size(), crc32c(entries.data(), entries.size())));
  put(data, 60, crc32c(data, 60));
  return bytes;
}

Snapshot decode_snapshot(const std::vector<char>& bytes, const Identity& identity,
                         const std::string& path) {
  GS_INTACT(bytes.size() >= kSnapshotHeader, path, " is damaged: it has ", bytes.size(), " bytes");
  const char* data = bytes.data();
  GS_INTACT(
      std::memcmp(data, kSnapshotMagic, 8) == 0 && get<std::uint32_t>(data, 60) == crc32c(data, 60),
      path, " is damaged: the checksum of its header does not hold");
  check_version(data, path);
  const Identity found = get<Identity>(data, 16);
  GS_INTACT(found == identity, path, " belongs to store ", hex(found), ", not to ", hex(identity));
  const auto n = get<std::uint64_t>(data, 40), state = get<std::uint64_t>(data, 48);
  GS_INTACT(n <= kMostBlocks && state <= bytes.size() &&
                kSnapshotHeader + n * sizeof(Entry) + state == bytes.size(),
            path, " is damaged: it has ", bytes.size(), " bytes");
  GS_INTACT(get<std::uint32_t>(data, 56) ==
                crc32c(data + kSnapshotHeader, bytes.size() - kSnapshotHeader),
            path, " is damaged: its checksum does not hold");
  Snapshot snapshot;
  snapshot.number = get<std::uint32_t>(data, 12);
  snapshot.seq = get<std::uint64_t>(data, 32);
  snapshot.entries.resize(n);
  if (n > 0) std::memcpy(snapshot.entries.data(), data + kSnapshotHeader, n * sizeof(Entry));
  for (std::size_t i = 0; i < n; ++i) {
    const Entry& entry = snapshot.entries[i];
    GS_INTACT(entry.block < kMostBlocks && entry.pages > 0 && entry.page > 0 &&
                  entry.page <= kMostSegmentPages && entry.segment < kMostSegments &&
                  entry.seq <= snapshot.seq &&
                  (i == 0 || entry.block > snapshot.entries[i - 1].block),
              path, " is damaged: entry ", i, " makes no sense");
  }
  snapshot.state.assign(data + kSnapshotHeader + n * sizeof(Entry), state);
  return snapshot;
}

}  // namespace gs::pinned::store
