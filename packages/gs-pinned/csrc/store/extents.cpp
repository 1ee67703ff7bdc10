// SPDX-License-Identifier: Apache-2.0
#include "store/extents.hpp"

#include <algorithm>

namespace gs::pinned::store {

bool Extents::is_needed(const Dead& dead) const {
  return std::any_of(cuts_.begin(), cuts_.end(),
                     [&](std::uint64_t seq) { return dead.birth <= seq && seq < dead.death; });
}

void Extents::give_back(const Dead& dead) {
  const auto pin = pins_.find(key(dead.place));
  if (pin != pins_.end()) {
    pin->second.free_pages = extent_pages(dead.pages);
  } else {
    segments_.add_free(dead.place, extent_pages(dead.pages));
  }
}

void Extents::retire(Place place, std::uint32_t record_pages, std::uint64_t birth,
                     std::uint64_t death) {
  const Dead dead{place, record_pages, birth, death};
  if (is_needed(dead)) {
    dead_.push_back(dead);
  } else {
    give_back(dead);
  }
}

void Extents::remove_cut(std::uint64_t seq) {
  const auto cut = std::find(cuts_.begin(), cuts_.end(), seq);
  if (cut != cuts_.end()) cuts_.erase(cut);
  const auto kept = std::partition(dead_.begin(), dead_.end(),
                                   [this](const Dead& dead) { return is_needed(dead); });
  std::for_each(kept, dead_.end(), [this](const Dead& dead) { give_back(dead); });
  dead_.erase(kept, dead_.end());
}

void Extents::unpin(Place place) {
  const auto pin = pins_.find(key(place));
  if (--pin->second.readers > 0) return;
  if (pin->second.free_pages > 0) segments_.add_free(place, pin->second.free_pages);
  pins_.erase(pin);
}

std::uint64_t Extents::dead_pages() const {
  std::uint64_t pages = 0;
  for (const Dead& dead : dead_) pages += extent_pages(dead.pages);
  return pages;
}

}  // namespace gs::pinned::store
