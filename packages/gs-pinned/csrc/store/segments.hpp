// SPDX-License-Identifier: Apache-2.0
// The files that hold records, and the free space in them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "store/file_calls.hpp"
#include "store/format.hpp"
#include "store/free_space.hpp"

namespace gs::pinned::store {

/// Thread-safe after the calls of opening: attach and add_free.
class Segments {
 public:
  Segments(const FileCalls& calls, std::string folder, const Layout& layout, bool direct);

  /// Opens the file of a segment. Throws CorruptError where it is missing, shorter than
  /// `needed_pages`, or another's. A file of which nothing is needed and whose header was never
  /// finished is made anew.
  void attach(std::uint32_t number, std::uint32_t needed_pages, bool writable);
  std::uint32_t pages(std::uint32_t number) const { return segments_[number]->pages; }
  bool has(std::uint32_t number) const {
    return number < segments_.size() && segments_[number] != nullptr;
  }
  std::uint32_t count() const { return static_cast<std::uint32_t>(segments_.size()); }

  /// A free extent for a record; files grow where there is none.
  Place allocate(std::uint32_t record_pages);
  /// Takes an extent, or any run of pages, back.
  void add_free(Place place, std::uint32_t pages);

  void read(Place place, char* buffer, std::size_t bytes) const;
  void write(Place place, const char* buffer, std::size_t bytes);
  /// Makes all that was written outlast a power cut.
  void sync();

  std::uint64_t total_pages() const;
  std::uint64_t free_pages() const;
  std::string path(std::uint32_t number) const;

 private:
  struct Segment {
    File file;
    std::uint32_t pages = 0;
    std::atomic<bool> is_dirty{false};
  };
  Segment& segment(std::uint32_t number) const;
  void create(std::uint32_t number);
  void grow(std::uint32_t extent);

  const FileCalls& calls_;
  const std::string folder_;
  const Layout& layout_;
  const bool direct_;
  mutable std::mutex mutex_;  // of what follows; a segment once made stays where it is
  std::vector<std::unique_ptr<Segment>> segments_;
  FreeSpace free_;
};

}  // namespace gs::pinned::store
