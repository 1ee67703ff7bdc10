// SPDX-License-Identifier: Apache-2.0
// Runs of free pages in the segments of a store.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace gs::pinned::store {

struct Place {
  std::uint32_t segment = 0;
  std::uint32_t page = 0;
};

/// Pages that a record of `pages` pages takes: rounded up to 1/16 of its power of two, so that
/// records of nearly one size leave no slivers.
constexpr std::uint32_t extent_pages(std::uint32_t pages) {
  std::uint32_t unit = 1;
  while (pages >= 32 * unit) unit *= 2;
  return (pages + unit - 1) / unit * unit;
}

/// Not thread-safe.
class FreeSpace {
 public:
  /// The run must not overlap a free one; joins its neighbours.
  void add(Place place, std::uint32_t pages) {
    if (pages == 0) return;
    auto next = runs_.lower_bound({place.segment, place.page});
    if (next != runs_.end() && next->first.first == place.segment &&
        next->first.second == place.page + pages) {
      pages += next->second;
      next = erase(next);
    }
    if (next != runs_.begin()) {
      const auto before = std::prev(next);
      if (before->first.first == place.segment &&
          before->first.second + before->second == place.page) {
        place.page = before->first.second;
        pages += before->second;
        erase(before);
      }
    }
    runs_[{place.segment, place.page}] = pages;
    sizes_.insert({pages, place.segment, place.page});
    total_ += pages;
  }

  /// The start of the smallest run that is large enough, cut to size.
  std::optional<Place> take(std::uint32_t pages) {
    const auto found = sizes_.lower_bound({pages, 0, 0});
    if (found == sizes_.end()) return std::nullopt;
    const auto [run, segment, page] = *found;
    erase(runs_.find({segment, page}));
    add({segment, page + pages}, run - pages);
    return Place{segment, page};
  }

  std::uint64_t total() const { return total_; }

 private:
  using Runs = std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t>;

  Runs::iterator erase(Runs::iterator run) {
    sizes_.erase({run->second, run->first.first, run->first.second});
    total_ -= run->second;
    return runs_.erase(run);
  }

  Runs runs_;                                                                // by place
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> sizes_;  // pages, then place
  std::uint64_t total_ = 0;
};

}  // namespace gs::pinned::store
