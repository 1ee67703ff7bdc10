// SPDX-License-Identifier: Apache-2.0
#include "store/record.hpp"

#include <algorithm>
#include <cstring>

#include "store/bytes.hpp"
#include "store/columns.hpp"
#include "store/crc32c.hpp"

namespace gs::pinned::store {
namespace {

constexpr char kMagic[9] = "GSRECORD";
constexpr std::size_t kHeader = 512, kPlanesAt = 64, kUnit = 64;

enum Codec : std::uint32_t { kRaw = 0, kZero = 1, kOneRow = 2, kColumns = 3 };

constexpr std::size_t up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// All rows equal to the first: as bytes, so that no value of a float is special.
Codec codec_of(const char* rows, std::size_t n, std::size_t row_bytes) {
  if (n == 0) return kZero;
  if (n > 1 && std::memcmp(rows, rows + row_bytes, (n - 1) * row_bytes) != 0) return kRaw;
  const bool is_zero = std::all_of(rows, rows + row_bytes, [](char byte) { return byte == 0; });
  return is_zero ? kZero : n > 1 ? kOneRow : kRaw;
}

std::size_t stored_bytes(Codec codec, std::size_t n, std::size_t row_bytes) {
  return codec == kRaw ? n * row_bytes : codec == kOneRow ? row_bytes : 0;
}

void zero(char* buffer, std::size_t first, std::size_t last) {
  std::memset(buffer + first, 0, last - first);
}

}  // namespace

std::uint32_t most_head_pages(const Layout& layout) {
  std::size_t bytes = kHeader;
  for (const Plane& plane : layout.planes)
    if (plane.is_head) bytes += up(std::size_t{plane.row_bytes} * layout.block_rows, kUnit);
  return static_cast<std::uint32_t>(up(bytes, kPage) / kPage);
}

void encode_record(const Layout& layout, const std::vector<const char*>& planes, Entry* entry,
                   char* buffer) {
  zero(buffer, 0, kHeader);
  std::size_t at = kHeader, head_end = 0;
  for (const bool is_head : {true, false}) {
    for (std::size_t i = 0; i < layout.planes.size(); ++i) {
      const Plane& plane = layout.planes[i];
      if (plane.is_head != is_head) continue;
      Codec codec = codec_of(planes[i], entry->rows, plane.row_bytes);
      std::size_t bytes = stored_bytes(codec, entry->rows, plane.row_bytes);
      ColumnPlan columns;
      if (codec == kRaw) columns = plan_columns(plane, planes[i], entry->rows);
      if (!columns.codes.empty()) {
        codec = kColumns;
        bytes = columns.bytes;
      }
      put(buffer, kPlanesAt + 8 * i, static_cast<std::uint32_t>(at / kUnit) << 8 | codec);
      put(buffer, kPlanesAt + 8 * i + 4, static_cast<std::uint32_t>(bytes));
      if (codec == kColumns)
        encode_columns(plane, columns, planes[i], entry->rows, buffer + at);
      else if (bytes > 0)
        std::memcpy(buffer + at, planes[i], bytes);
      zero(buffer, at + bytes, up(at + bytes, kUnit));
      at = up(at + bytes, kUnit);
    }
    zero(buffer, at, up(at, kPage));
    at = up(at, kPage);
    if (is_head) head_end = at;
  }
  entry->pages = static_cast<std::uint16_t>(at / kPage);
  std::memcpy(buffer, kMagic, 8);
  put(buffer, 8, kVersion);
  put(buffer, 12, entry->block);
  put(buffer, 16, layout.identity);
  put(buffer, 32, entry->seq);
  put(buffer, 40, entry->step);
  put(buffer, 44, std::uint32_t{entry->rows});
  put(buffer, 48, static_cast<std::uint32_t>(head_end / kPage));
  put(buffer, 52, std::uint32_t{entry->pages});
  put(buffer, 56, crc32c(buffer + kHeader, head_end - kHeader));
  put(buffer, 60, crc32c(buffer + head_end, at - head_end));
  entry->header_crc = crc32c(buffer, kHeader - 4);
  put(buffer, kHeader - 4, entry->header_crc);
}

std::string decode_record(const Layout& layout, const Entry& entry, const char* buffer,
                          std::size_t bytes, bool is_head_alone, const std::vector<char*>& planes) {
  if (std::memcmp(buffer, kMagic, 8) != 0) return "no record begins there";
  const auto crc = get<std::uint32_t>(buffer, kHeader - 4);
  if (crc != crc32c(buffer, kHeader - 4)) return "the checksum of its header does not hold";
  const Identity identity = get<Identity>(buffer, 16);
  if (identity != layout.identity) return "the record is of store " + hex(identity);
  const auto block = get<std::uint32_t>(buffer, 12);
  if (block != entry.block) return "the record is of block " + std::to_string(block);
  const auto seq = get<std::uint64_t>(buffer, 32);
  if (seq != entry.seq || crc != entry.header_crc)
    return "the record is of write " + std::to_string(seq) + ", another one";
  // The header is the one that was written: what it says holds.
  const std::size_t head_end = std::size_t{get<std::uint32_t>(buffer, 48)} * kPage;
  const std::size_t end = std::size_t{get<std::uint32_t>(buffer, 52)} * kPage;
  if (get<std::uint32_t>(buffer, 8) != kVersion || head_end < kPage || head_end > end ||
      end != std::size_t{entry.pages} * kPage || bytes < (is_head_alone ? head_end : end))
    return "its header makes no sense";
  if (get<std::uint32_t>(buffer, 56) != crc32c(buffer + kHeader, head_end - kHeader))
    return "the checksum of its first part does not hold";
  if (!is_head_alone && get<std::uint32_t>(buffer, 60) != crc32c(buffer + head_end, end - head_end))
    return "the checksum of its second part does not hold";
  for (const bool is_copying : {false, true}) {
    for (std::size_t i = 0; i < layout.planes.size(); ++i) {
      const std::size_t row_bytes = layout.planes[i].row_bytes;
      const auto word = get<std::uint32_t>(buffer, kPlanesAt + 8 * i);
      const auto codec = static_cast<Codec>(word & 0xff);
      const std::size_t at = std::size_t{word >> 8} * kUnit;
      const std::size_t size = get<std::uint32_t>(buffer, kPlanesAt + 8 * i + 4);
      if (!is_copying) {
        const bool is_there = at + size <= (is_head_alone ? head_end : end);
        bool makes_sense = codec <= kColumns && at + size <= end;
        if (codec != kColumns)
          makes_sense &= size == stored_bytes(codec, entry.rows, row_bytes);
        else if (makes_sense && is_there)
          makes_sense = decode_columns(layout.planes[i], buffer + at, size, entry.rows, nullptr);
        if (!makes_sense) return "plane " + layout.planes[i].name + " makes no sense";
        continue;
      }
      char* const to = planes.empty() ? nullptr : planes[i];
      if (to == nullptr) continue;
      if (codec == kColumns) decode_columns(layout.planes[i], buffer + at, size, entry.rows, to);
      if (codec == kRaw) std::memcpy(to, buffer + at, size);
      if (codec == kZero) std::memset(to, 0, entry.rows * row_bytes);
      if (codec == kOneRow)
        for (std::size_t row = 0; row < entry.rows; ++row)
          std::memcpy(to + row * row_bytes, buffer + at, row_bytes);
    }
  }
  return "";
}

}  // namespace gs::pinned::store
