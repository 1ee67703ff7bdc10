// SPDX-License-Identifier: Apache-2.0
// How a store is made and opened: which snapshot counts, and what is free space then.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <utility>

#include "store/block_store.hpp"
#include "store/errors.hpp"

namespace gs::pinned::store {
namespace {

// The number of a file's name with that prefix; -1 for other names.
std::int64_t number_in(const std::string& name, const std::string& prefix, std::size_t digits) {
  if (name.size() != prefix.size() + digits || name.compare(0, prefix.size(), prefix) != 0)
    return -1;
  std::int64_t number = 0;
  for (std::size_t i = prefix.size(); i < name.size(); ++i) {
    if (name[i] < '0' || name[i] > '9') return -1;
    number = 10 * number + (name[i] - '0');
  }
  return number <= UINT32_MAX ? number : -1;
}

// Throws where a new store must not be made. All but STORE, which is made last, may be left of a
// creation that was cut short.
void check_free(const FileCalls& calls, const std::string& path) {
  GS_CHECK(!calls.exists(path + "/STORE"), "path must be free for a new store, got ", path,
           ", which holds one");
  for (const std::string& name : calls.names(path))
    GS_CHECK(name == "." || name == ".." || name == "LOCK" || number_in(name, "snap-", 10) == 0 ||
                 name == "snap-0000000000.tmp" || name == "STORE.tmp",
             "path must be an empty folder, or not exist, got ", path, ", which holds ", name);
}

// A file that replace() did not come to rename.
bool is_left_over(const std::string& name) {
  if (name == "STORE.tmp") return true;
  const std::size_t dot = name.rfind(".tmp");
  return dot != std::string::npos && dot + 4 == name.size() &&
         number_in(name.substr(0, dot), "snap-", 10) >= 0;
}

// Behind the whole extent: all of it is free once nobody needs the record.
std::uint32_t end_of(const Entry& entry) { return entry.page + extent_pages(entry.pages); }

}  // namespace

void BlockStore::create(const FileCalls& calls, const std::string& path, const Layout& layout) {
  GS_CHECK(layout.block_rows >= 1 && layout.block_rows <= kMostBlockRows,
           "block_rows must be 1 to ", kMostBlockRows, ", got ", layout.block_rows);
  for (const Plane& plane : layout.planes)
    GS_CHECK(plane.name.size() <= kMostNameBytes && plane.dtype.size() <= kMostDtypeBytes,
             "names of planes and dtypes must have at most ", kMostNameBytes, " and ",
             kMostDtypeBytes, " bytes, got ", plane.name, " and ", plane.dtype);
  const std::uint32_t pages = layout.most_record_pages();
  GS_CHECK(pages <= kMostRecordPages, "a block must have at most ", kMostRecordPages, " pages of ",
           kPage, " bytes, got ", pages, "; take fewer block_rows");
  GS_CHECK(layout.segment_pages > extent_pages(pages), "segment_bytes must hold a block of ", pages,
           " pages of ", kPage, " bytes, got ", std::uint64_t{layout.segment_pages} * kPage);
  GS_CHECK(layout.segment_pages <= kMostSegmentPages, "segment_bytes must be at most ",
           std::uint64_t{kMostSegmentPages} * kPage, ", got ",
           std::uint64_t{layout.segment_pages} * kPage);
  if (!calls.exists(path)) {
    calls.make_folder(path);
    calls.sync_folder(folder_of(path));
  }
  check_free(calls, path);
  const File lock = calls.open(path + "/LOCK", FileCalls::Mode::kCreate, false);
  GS_CHECK_AS(pinned::store::ReadOnlyError, calls.lock(lock), "the store ", path,
              " is being made by another process");
  check_free(calls, path);  // another process may have made one before the lock was ours
  const auto snapshot = encode_snapshot_header({}, {}, layout.identity);
  calls.replace(path + "/snap-0000000000", {bytes_of(snapshot)});
  const std::vector<char> bytes = encode_layout(layout);
  calls.replace(path + "/STORE", {bytes_of(bytes)});
}

BlockStore::BlockStore(FileCalls calls, std::string path, const OpenOptions& options)
    : calls_(std::move(calls)), path_(std::move(path)), owner_(getpid()) {
  layout_ = decode_layout(calls_.contents(path_ + "/STORE"), path_ + "/STORE");
  if (options.read_only) {
    refusal_ = "it was opened for reading";
  } else {
    lock_ = calls_.open(path_ + "/LOCK", FileCalls::Mode::kCreate, false);
    GS_CHECK_AS(pinned::store::ReadOnlyError, calls_.lock(lock_), "the store ", path_,
                " is written by another process, or by another object of this one; open it with "
                "read_only=True");
    // A writer that was killed may have made or removed names that are not on the drive yet. A
    // snapshot that came back would name extents that are free now.
    calls_.sync_folder(path_);
  }
  is_direct_ = calls_.open(path_ + "/STORE", FileCalls::Mode::kRead, true).is_direct();
  segments_ = std::make_unique<Segments>(calls_, path_, layout_, is_direct_);
  extents_ = std::make_unique<Extents>(*segments_);
  std::vector<Snapshot> snapshots = load_snapshots(options);
  attach_segments(snapshots, !options.read_only);
  check_extents();
  if (!options.read_only) add_free_space(snapshots);
  pool_ = std::make_unique<IoPool>(options.threads, layout_.most_record_pages() * kPage);
}

std::string BlockStore::snapshot_path(std::uint32_t number) const {
  char name[32];
  std::snprintf(name, sizeof(name), "/snap-%010u", number);
  return path_ + name;
}

// All whole ones, by rising number; the chosen one is put into place.
std::vector<Snapshot> BlockStore::load_snapshots(const OpenOptions& options) {
  std::vector<std::int64_t> numbers;
  for (const std::string& name : calls_.names(path_)) {
    const std::int64_t number = number_in(name, "snap-", 10);
    if (number >= 0) numbers.push_back(number);
    if (is_left_over(name) && !options.read_only) calls_.remove(path_ + "/" + name);
  }
  std::vector<Snapshot> whole;
  bool is_replaced = false;
  for (const std::int64_t number : numbers) {
    const std::string name = snapshot_path(static_cast<std::uint32_t>(number));
    next_snapshot_ = static_cast<std::uint32_t>(number) + 1;
    try {
      Snapshot snapshot = decode_snapshot(calls_.contents(name), layout_.identity, name);
      GS_CHECK_AS(pinned::store::CorruptError, snapshot.number == number, name,
                  " is damaged: it holds snapshot ", snapshot.number);
      whole.push_back(std::move(snapshot));
    } catch (const VersionError&) {
      throw;  // a writer of this version would remove the snapshot as one that is damaged
    } catch (const CorruptError& error) {
      damaged_.push_back(error.what());
      damaged_numbers_.push_back(static_cast<std::uint32_t>(number));
    } catch (const FileError& error) {
      // Its writer has removed it since the names were read, for a newer one.
      if (!options.read_only || error.code != ENOENT) throw;
      is_replaced = true;
    }
  }
  if (is_replaced && whole.empty()) {
    damaged_.clear();
    return load_snapshots(options);
  }
  auto chosen = whole.end();
  if (options.snapshot < 0) {
    if (!whole.empty()) chosen = std::prev(whole.end());
  } else {
    chosen = std::find_if(whole.begin(), whole.end(), [&](const Snapshot& snapshot) {
      return snapshot.number == options.snapshot;
    });
  }
  if (chosen == whole.end()) {
    std::string text = options.snapshot < 0
                           ? "no snapshot of the store " + path_ + " is whole"
                           : "snapshot " + std::to_string(options.snapshot) + " of the store " +
                                 path_ + " is not there, or not whole";
    for (const std::string& problem : damaged_) text += "; " + problem;
    throw CorruptError(text);
  }
  for (const Snapshot& snapshot : whole) {
    seq_ = std::max(seq_, snapshot.seq);
    kept_.push_back({snapshot.number, snapshot.seq});
    extents_->add_cut(snapshot.seq);
  }
  if (!chosen->entries.empty()) index_.resize(chosen->entries.back().block + 1);
  for (const Entry& entry : chosen->entries) index_[entry.block] = entry;
  opened_.number = chosen->number;
  opened_.seq = chosen->seq;
  opened_.state = std::move(chosen->state);
  for (Snapshot& snapshot : whole) std::string().swap(snapshot.state);
  return whole;
}

void BlockStore::attach_segments(const std::vector<Snapshot>& snapshots, bool writable) {
  std::map<std::uint32_t, std::uint32_t> needed;  // pages, by segment
  const auto need = [&](const Entry& entry) {
    needed[entry.segment] = std::max(needed[entry.segment], end_of(entry));
  };
  for (const Entry& entry : index_)
    if (entry.pages > 0) need(entry);
  if (writable) {
    for (const std::string& name : calls_.names(path_)) {
      const std::int64_t number = number_in(name, "seg-", 6);
      if (number >= 0 && number < kMostSegments)
        needed.insert({static_cast<std::uint32_t>(number), 0});
    }
    // A segment made anew in the place of a lost one would hold new records on pages that become
    // free with another snapshot. So all of each snapshot's pages must be there.
    for (const Snapshot& snapshot : snapshots)
      std::for_each(snapshot.entries.begin(), snapshot.entries.end(), need);
  }
  for (const auto& [number, pages] : needed) segments_->attach(number, pages, writable);
}

// Entries of a snapshot whose checksum holds are what was written; this finds our own mistakes.
void BlockStore::check_extents() const {
  std::vector<Entry> entries;
  std::copy_if(index_.begin(), index_.end(), std::back_inserter(entries),
               [](const Entry& entry) { return entry.pages > 0; });
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::make_pair(a.segment, a.page) < std::make_pair(b.segment, b.page);
  });
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    GS_CHECK_AS(pinned::store::CorruptError,
                entry.pages <= layout_.most_record_pages() && entry.rows <= layout_.block_rows,
                snapshot_path(opened_.number), " is damaged: block ", entry.block, " has ",
                entry.pages, " pages and ", entry.rows, " rows");
    if (i == 0) continue;
    const Entry& before = entries[i - 1];
    GS_CHECK_AS(pinned::store::CorruptError,
                before.segment != entry.segment || end_of(before) <= entry.page,
                snapshot_path(opened_.number), " is damaged: blocks ", before.block, " and ",
                entry.block, " lie on the same pages");
  }
}

// Everything that no snapshot names is free; what only other snapshots name lives as long as they.
void BlockStore::add_free_space(const std::vector<Snapshot>& snapshots) {
  struct Named {
    std::uint32_t segment, page, pages;
    bool is_live;
    std::uint64_t birth, last_cut;
    std::pair<std::uint32_t, std::uint32_t> place() const { return {segment, page}; }
  };
  std::vector<Named> named;
  std::size_t most = 0;
  for (const Snapshot& snapshot : snapshots) most += snapshot.entries.size();
  named.reserve(most);
  for (const Snapshot& snapshot : snapshots)
    for (const Entry& entry : snapshot.entries)
      named.push_back({entry.segment, entry.page, entry.pages, snapshot.number == opened_.number,
                       entry.seq, snapshot.seq});
  std::sort(named.begin(), named.end(),
            [](const Named& a, const Named& b) { return a.place() < b.place(); });
  std::size_t n = 0;  // of those that were joined
  for (const Named& one : named) {
    if (n == 0 || named[n - 1].place() != one.place()) {
      named[n++] = one;
      continue;
    }
    Named& same = named[n - 1];
    same.pages = std::max(same.pages, one.pages);
    same.is_live = same.is_live || one.is_live;
    same.birth = std::min(same.birth, one.birth);
    same.last_cut = std::max(same.last_cut, one.last_cut);
  }
  named.resize(n);
  auto next = named.begin();
  for (std::uint32_t number = 0; number < segments_->count(); ++number) {
    if (!segments_->has(number)) continue;
    std::uint32_t at = 1;
    const auto add_until = [&](std::uint32_t page) {
      page = std::min(page, segments_->pages(number));
      if (page > at) segments_->add_free({number, at}, page - at);
    };
    for (; next != named.end() && next->segment == number; ++next) {
      add_until(next->page);
      at = std::max(at, next->page + extent_pages(next->pages));
    }
    add_until(segments_->pages(number));
  }
  for (const Named& one : named)
    if (!one.is_live)
      extents_->add_dead({one.segment, one.page}, one.pages, one.birth, one.last_cut + 1);
}

}  // namespace gs::pinned::store
