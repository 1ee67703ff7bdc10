// SPDX-License-Identifier: Apache-2.0
// Which extents may be written again: those that no snapshot and no read needs.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "store/segments.hpp"

namespace gs::pinned::store {

/// Extents that are no longer in the index, until nobody needs them. An extent written at `birth`
/// and replaced at `death` belongs to the snapshots cut at s with birth <= s < death. Not
/// thread-safe; the owner's lock guards it.
class Extents {
 public:
  explicit Extents(Segments& segments) : segments_(segments) {}

  /// From now on a snapshot cut at `seq` exists, or is being made.
  void add_cut(std::uint64_t seq) { cuts_.push_back(seq); }
  void remove_cut(std::uint64_t seq);

  /// The index names another extent, or none.
  void retire(Place place, std::uint32_t record_pages, std::uint64_t birth, std::uint64_t death);
  /// The same, without giving anything back before the next remove_cut.
  void add_dead(Place place, std::uint32_t record_pages, std::uint64_t birth, std::uint64_t death) {
    dead_.push_back({place, record_pages, birth, death});
  }

  /// A read needs the extent until unpin.
  void pin(Place place) { ++pins_[key(place)].readers; }
  void unpin(Place place);

  std::uint64_t dead_pages() const;

 private:
  struct Dead {
    Place place;
    std::uint32_t pages;
    std::uint64_t birth, death;
  };
  struct Pin {
    int readers = 0;
    std::uint32_t free_pages = 0;  // not 0: to be given back by the last reader
  };
  static std::uint64_t key(Place place) { return std::uint64_t{place.segment} << 32 | place.page; }
  bool is_needed(const Dead& dead) const;
  void give_back(const Dead& dead);

  Segments& segments_;
  std::vector<std::uint64_t> cuts_;
  std::vector<Dead> dead_;
  std::unordered_map<std::uint64_t, Pin> pins_;
};

}  // namespace gs::pinned::store
