// SPDX-License-Identifier: Apache-2.0
#include "store/segments.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "store/errors.hpp"
#include "store/io_buffer.hpp"

namespace gs::pinned::store {
namespace {

// A file grows by a quarter, within these bounds.
constexpr std::uint32_t kLeastGrowth = 256, kMostGrowth = 16384;

}  // namespace

Segments::Segments(const FileCalls& calls, std::string folder, const Layout& layout, bool direct)
    : calls_(calls), folder_(std::move(folder)), layout_(layout), direct_(direct) {}

std::string Segments::path(std::uint32_t number) const {
  char name[32];
  std::snprintf(name, sizeof(name), "/seg-%06u", number);
  return folder_ + name;
}

void Segments::attach(std::uint32_t number, std::uint32_t needed_pages, bool writable) {
  const std::string name = path(number);
  GS_CHECK_AS(pinned::store::CorruptError, calls_.exists(name), name, " is missing");
  auto segment = std::make_unique<Segment>();
  segment->file =
      calls_.open(name, writable ? FileCalls::Mode::kWrite : FileCalls::Mode::kRead, direct_);
  const std::uint64_t pages = calls_.size(segment->file) / kPage;
  GS_CHECK_AS(pinned::store::CorruptError, pages >= needed_pages, name, " must have ", needed_pages,
              " pages of ", kPage, " bytes, got ", pages);
  segment->pages =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(pages, layout_.segment_pages));
  if (segments_.size() <= number) segments_.resize(number + 1);
  IoBuffer page(kPage);
  std::string problem = "its header is damaged";
  if (pages > 0) {
    calls_.read(segment->file, page.data(), kPage, 0);
    problem = check_segment(page.data(), number, layout_.identity);
  }
  if (needed_pages == 0 && problem == "its header is damaged") return create(number);
  GS_CHECK_AS(pinned::store::CorruptError, problem.empty(), name, " cannot be used: ", problem);
  segments_[number] = std::move(segment);
}

void Segments::create(std::uint32_t number) {
  auto segment = std::make_unique<Segment>();
  segment->file = calls_.open(path(number), FileCalls::Mode::kCreate, direct_);
  IoBuffer page(kPage);
  encode_segment(page.data(), number, layout_.identity);
  calls_.write(segment->file, page.data(), kPage, 0);
  calls_.sync(segment->file);
  calls_.sync_folder(folder_);
  segment->pages = 1;
  segments_[number] = std::move(segment);
}

void Segments::grow(std::uint32_t extent) {
  std::uint32_t number = 0;
  while (number < segments_.size() &&
         (!segments_[number] || segments_[number]->pages + extent > layout_.segment_pages))
    ++number;
  if (number == segments_.size()) {
    GS_CHECK(number < kMostSegments, "a store must have at most ", kMostSegments, " segments");
    segments_.resize(number + 1);
    try {
      create(number);
    } catch (...) {
      segments_.pop_back();
      throw;
    }
  }
  Segment& segment = *segments_[number];
  const std::uint32_t most = layout_.segment_pages - segment.pages;
  std::uint32_t more = std::clamp(segment.pages / 4, kLeastGrowth, kMostGrowth);
  more = std::min(std::max(more, extent), most);
  calls_.allocate(segment.file, std::uint64_t{segment.pages} * kPage, std::uint64_t{more} * kPage);
  free_.add({number, segment.pages}, more);
  segment.pages += more;
  segment.is_dirty = true;  // its size
}

Place Segments::allocate(std::uint32_t record_pages) {
  const std::uint32_t extent = extent_pages(record_pages);
  const std::lock_guard<std::mutex> guard(mutex_);
  std::optional<Place> place = free_.take(extent);
  if (!place) {
    grow(extent);
    place = free_.take(extent);
  }
  return *place;
}

void Segments::add_free(Place place, std::uint32_t pages) {
  const std::lock_guard<std::mutex> guard(mutex_);
  free_.add(place, pages);
}

Segments::Segment& Segments::segment(std::uint32_t number) const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return *segments_[number];
}

void Segments::read(Place place, char* buffer, std::size_t bytes) const {
  calls_.read(segment(place.segment).file, buffer, bytes, std::uint64_t{place.page} * kPage);
}

void Segments::write(Place place, const char* buffer, std::size_t bytes) {
  Segment& written = segment(place.segment);
  written.is_dirty = true;
  calls_.write(written.file, buffer, bytes, std::uint64_t{place.page} * kPage);
  written.is_dirty = true;  // a sync in between may have missed the write
}

void Segments::sync() {
  for (std::uint32_t number = 0;; ++number) {
    Segment* synced = nullptr;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      if (number >= segments_.size()) return;
      synced = segments_[number].get();
    }
    if (synced != nullptr && synced->is_dirty.exchange(false)) calls_.sync(synced->file);
  }
}

std::uint64_t Segments::total_pages() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::uint64_t pages = 0;
  for (const auto& segment : segments_) pages += segment != nullptr ? segment->pages : 0;
  return pages;
}

std::uint64_t Segments::free_pages() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return free_.total();
}

}  // namespace gs::pinned::store
