// SPDX-License-Identifier: Apache-2.0
#include "store/block_store.hpp"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "store/errors.hpp"
#include "store/record.hpp"

namespace gs::pinned::store {
namespace {

bool is_head_alone(const Layout& layout, const std::vector<char*>& planes) {
  for (std::size_t i = 0; i < planes.size(); ++i)
    if (planes[i] != nullptr && !layout.planes[i].is_head) return false;
  return true;
}

// Each task's planes begin at its block's first row.
template <class Byte>
std::vector<Byte*> moved(const Layout& layout, const std::vector<Byte*>& planes,
                         std::uint64_t first) {
  std::vector<Byte*> result = planes;
  for (std::size_t i = 0; i < planes.size(); ++i)
    if (result[i] != nullptr) result[i] += first * layout.planes[i].row_bytes;
  return result;
}

// Submits n tasks. One that the pool does not take is reported as failed, after refused(i, reason).
template <class TaskOf, class Refused>
std::shared_ptr<Ticket> submit_all(IoPool& pool, std::size_t n, TaskOf&& task_of,
                                   Refused&& refused) {
  auto ticket = std::make_shared<Ticket>(n);
  for (std::size_t i = 0; i < n; ++i) {
    try {
      pool.submit(ticket, task_of(i));
    } catch (const std::exception& error) {
      refused(i, error.what());
      ticket->report(std::current_exception());
    }
  }
  return ticket;
}

// A read that is refused leaves nothing behind.
void ignore(std::size_t, const char*) {}

}  // namespace

// A block's entry, whose extent is not written again before the last reader has let go.
class BlockStore::Pinned {
 public:
  /// The owner's mutex_ is held.
  Pinned(BlockStore& owner, const Entry& entry_)
      : entry(entry_), owner_(owner), place_{entry.segment, entry.page} {
    owner_.extents_->pin(place_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() {
    const Guard guard(owner_.mutex_);
    owner_.extents_->unpin(place_);
  }

  const Entry entry;

 private:
  BlockStore& owner_;
  const Place place_;
};

std::string BlockStore::where(const Entry& entry) const {
  return "block " + std::to_string(entry.block) + " of step " + std::to_string(entry.step) +
         " (write " + std::to_string(entry.seq) + "), in " + segments_->path(entry.segment) +
         " at page " + std::to_string(entry.page);
}

BlockStore::~BlockStore() { close(); }

void BlockStore::close() {
  const Guard one_at_a_time(snapshot_mutex_);
  pool_->finish();
  const Guard guard(mutex_);
  refusal_ = "it was closed";
  if (lock_.is_open()) calls_.unlock(lock_);
  lock_.close();
}

bool BlockStore::is_inherited() const { return getpid() != owner_; }

bool BlockStore::is_read_only() const {
  const Guard guard(mutex_);
  return !refusal_.empty();
}

void BlockStore::check_writable() const {
  GS_CHECK_AS(pinned::store::ReadOnlyError, refusal_.empty(), "the store ", path_,
              " cannot be written: ", refusal_);
}

const Entry& BlockStore::entry_of(std::uint32_t block) const {
  GS_CHECK_AS(RangeError, block < index_.size() && index_[block].pages > 0, "block ", block,
              " must have been written, got one that the store ", path_, " does not hold");
  return index_[block];
}

std::vector<std::uint32_t> BlockStore::counts(const std::vector<std::uint32_t>& blocks) const {
  const Guard guard(mutex_);
  std::vector<std::uint32_t> result;
  result.reserve(blocks.size());
  for (const std::uint32_t block : blocks) result.push_back(entry_of(block).rows);
  return result;
}

std::vector<std::uint32_t> BlockStore::blocks() const {
  const Guard guard(mutex_);
  std::vector<std::uint32_t> result;
  for (const Entry& entry : index_)
    if (entry.pages > 0) result.push_back(entry.block);
  return result;
}

// ---- writing

std::shared_ptr<Ticket> BlockStore::write(const std::vector<std::uint32_t>& blocks,
                                          const std::vector<std::uint32_t>& counts,
                                          const std::vector<std::uint64_t>& firsts,
                                          const std::vector<const char*>& planes,
                                          std::uint32_t step) {
  std::unordered_set<std::uint32_t> seen;
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    GS_CHECK_AS(RangeError, blocks[i] < kMostBlocks, "blocks must be below ", kMostBlocks, ", got ",
                blocks[i]);
    GS_CHECK(seen.insert(blocks[i]).second, "blocks must be distinct, got block ", blocks[i],
             " twice");
    GS_CHECK(counts[i] <= layout_.block_rows, "counts must be at most ", layout_.block_rows,
             " rows a block, got ", counts[i], " for block ", blocks[i]);
    most = std::max(most, blocks[i]);
  }
  std::vector<Entry> entries(blocks.size());
  {
    const Guard guard(mutex_);
    check_writable();
    if (!blocks.empty() && index_.size() <= most) index_.resize(most + 1);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      entries[i].block = blocks[i];
      entries[i].step = step;
      entries[i].seq = ++seq_;
      entries[i].rows = static_cast<std::uint16_t>(counts[i]);
    }
  }
  return submit_all(
      *pool_, blocks.size(),
      [&](std::size_t i) {
        return [this, entry = entries[i], from = moved(layout_, planes, firsts[i])](
                   IoBuffer& buffer) { write_one(entry, from, buffer); };
      },
      [&](std::size_t i, const char* reason) { give_up(entries[i], reason); });
}

void BlockStore::write_one(const Entry& wanted, const std::vector<const char*>& planes,
                           IoBuffer& buffer) {
  Entry entry = wanted;
  try {
    encode_record(layout_, planes, &entry, buffer.data());
    const Place place = segments_->allocate(entry.pages);
    entry.segment = place.segment;
    entry.page = place.page;
    // After a failure the extent is left alone: who knows what the drive does with it.
    segments_->write(place, buffer.data(), entry.pages * kPage);
    commit(entry);
  } catch (const FileError& error) {
    const std::string text = "block " + std::to_string(entry.block) + " of step " +
                             std::to_string(entry.step) + " was not written: " + error.what();
    give_up(entry, text);
    if (error.is_sync) refuse_writes(error.what());  // of a new segment
    throw FileError(error.code, error.path, text, error.is_sync);
  } catch (const std::exception& error) {
    give_up(entry, error.what());
    throw;
  }
}

void BlockStore::commit(const Entry& entry) {
  const Guard guard(mutex_);
  ++done_.records_written;
  done_.bytes_written += entry.pages * kPage;
  const Entry old = index_[entry.block];
  if (old.pages > 0 && old.seq > entry.seq) {  // a later write was faster
    segments_->add_free({entry.segment, entry.page}, extent_pages(entry.pages));
    return;
  }
  index_[entry.block] = entry;
  if (old.pages > 0) extents_->retire({old.segment, old.page}, old.pages, old.seq, ++seq_);
  const auto unwritten = unwritten_.find(entry.block);
  if (unwritten != unwritten_.end() && unwritten->second.seq < entry.seq)
    unwritten_.erase(unwritten);
}

void BlockStore::refuse_writes(const std::string& reason) {
  const Guard guard(mutex_);
  refusal_ = reason;
}

void BlockStore::give_up(const Entry& entry, const std::string& reason) {
  const Guard guard(mutex_);
  const Entry& present = index_[entry.block];
  if (present.pages > 0 && present.seq > entry.seq) return;
  Unwritten& unwritten = unwritten_[entry.block];
  if (unwritten.seq < entry.seq) unwritten = {entry.seq, reason};
}

// ---- reading

BlockStore::Pins BlockStore::pinned(const std::vector<std::uint32_t>& blocks) {
  Pins pins;  // outlives the guard, which what is pinned takes as it goes
  pins.reserve(blocks.size());
  const Guard guard(mutex_);
  for (const std::uint32_t block : blocks) entry_of(block);
  for (const std::uint32_t block : blocks)
    pins.push_back(std::make_shared<const Pinned>(*this, entry_of(block)));
  return pins;
}

std::shared_ptr<Ticket> BlockStore::read(const std::vector<std::uint32_t>& blocks,
                                         const std::vector<std::uint32_t>& counts,
                                         const std::vector<std::uint64_t>& firsts,
                                         const std::vector<char*>& planes) {
  const Pins pins = pinned(blocks);
  for (std::size_t i = 0; i < blocks.size(); ++i)
    GS_CHECK(pins[i]->entry.rows == counts[i], "block ", blocks[i], " must have ", counts[i],
             " rows, got ", pins[i]->entry.rows, ": another thread writes it");
  const bool head_alone = is_head_alone(layout_, planes);
  return submit_all(
      *pool_, blocks.size(),
      [&](std::size_t i) {
        return [this, pin = pins[i], to = moved(layout_, planes, firsts[i]), head_alone](
                   IoBuffer& buffer) { read_one(pin->entry, to, head_alone, buffer.data()); };
      },
      ignore);
}

void BlockStore::read_one(const Entry& entry, const std::vector<char*>& planes, bool head_alone,
                          char* buffer) {
  const std::uint32_t pages =
      head_alone ? std::min<std::uint32_t>(entry.pages, most_head_pages(layout_)) : entry.pages;
  try {
    segments_->read({entry.segment, entry.page}, buffer, pages * kPage);
  } catch (const FileError& error) {
    throw FileError(error.code, error.path, where(entry) + ", was not read: " + error.what());
  }
  const std::string problem =
      decode_record(layout_, entry, buffer, pages * kPage, head_alone, planes);
  GS_CHECK_AS(pinned::store::CorruptError, problem.empty(), where(entry),
              ", is damaged: ", problem);
  const Guard guard(mutex_);
  ++done_.records_read;
  done_.bytes_read += pages * kPage;
}

std::vector<std::string> BlockStore::verify(const std::vector<std::uint32_t>& blocks) {
  const Pins pins = pinned(blocks);
  std::vector<std::string> problems(blocks.size());
  const std::shared_ptr<Ticket> ticket = submit_all(
      *pool_, blocks.size(),
      [&](std::size_t i) {
        return [this, pin = pins[i], problem = &problems[i]](IoBuffer& buffer) {
          char* const data = buffer.data();
          try {
            read_one(pin->entry, {}, false, data);
          } catch (const Error& error) {
            *problem = error.what();
          }
        };
      },
      ignore);
  ticket->wait();
  ticket->raise();
  problems.erase(std::remove(problems.begin(), problems.end(), ""), problems.end());
  return problems;
}

// ---- snapshots

std::vector<std::uint32_t> BlockStore::snapshots() const {
  const Guard guard(mutex_);
  std::vector<std::uint32_t> numbers;
  for (const Kept& kept : kept_) numbers.push_back(kept.number);
  return numbers;
}

std::string BlockStore::state() const {
  const Guard guard(mutex_);
  return opened_.state;
}

void BlockStore::forget_state() {
  const Guard guard(mutex_);
  std::string().swap(opened_.state);
}

void BlockStore::forget_cut(std::uint64_t seq) {
  const Guard guard(mutex_);
  extents_->remove_cut(seq);
}

std::uint32_t BlockStore::snapshot(std::string_view state, std::uint32_t keep) {
  const Guard one_at_a_time(snapshot_mutex_);
  Snapshot made;  // whose state stays the caller's
  {
    const Guard guard(mutex_);
    check_writable();
    if (!unwritten_.empty()) {
      const auto& [block, unwritten] = *unwritten_.begin();
      detail::throw_error<ReadOnlyError>(
          "a snapshot must hold what was written, but a write failed; write block ", block,
          " again (", unwritten.reason, ")");
    }
    made.number = next_snapshot_;
    made.seq = seq_;
    made.entries.reserve(index_.size());
    std::copy_if(index_.begin(), index_.end(), std::back_inserter(made.entries),
                 [](const Entry& entry) { return entry.pages > 0; });
    extents_->add_cut(made.seq);
  }
  try {
    segments_->sync();
    const auto header = encode_snapshot_header(made, state, layout_.identity);
    calls_.replace(snapshot_path(made.number), {bytes_of(header), bytes_of(made.entries), state});
  } catch (const FileError& error) {
    // After a failed sync nobody knows what is on disk: both snapshots' extents stay as they are.
    if (error.is_sync) {
      refuse_writes(error.what());
    } else {
      forget_cut(made.seq);
    }
    throw FileError(error.code, error.path,
                    "snapshot " + std::to_string(made.number) + " was not made: " + error.what());
  } catch (...) {
    forget_cut(made.seq);
    throw;
  }
  {
    const Guard guard(mutex_);
    ++next_snapshot_;
    kept_.push_back({made.number, made.seq});
  }
  remove_old_snapshots(keep);
  return made.number;
}

void BlockStore::remove_old_snapshots(std::uint32_t keep) {
  std::vector<Kept> old;
  {
    const Guard guard(mutex_);
    if (kept_.size() > keep) old.assign(kept_.begin(), kept_.end() - keep);
  }
  std::vector<std::uint32_t> removed;
  try {
    for (const Kept& kept : old) {
      calls_.remove(snapshot_path(kept.number));
      removed.push_back(kept.number);
    }
    for (; !damaged_numbers_.empty(); damaged_numbers_.pop_back())
      calls_.remove(snapshot_path(damaged_numbers_.back()));
  } catch (const FileError&) {
    // The new snapshot is safe; the next one tries again.
  }
  if (removed.empty()) return;
  try {
    calls_.sync_folder(path_);  // before their extents are written, lest they come back
  } catch (const FileError& error) {
    refuse_writes(error.what());
    throw;
  }
  const Guard guard(mutex_);
  for (const Kept& kept : old) {
    if (std::find(removed.begin(), removed.end(), kept.number) == removed.end()) continue;
    kept_.erase(std::find_if(kept_.begin(), kept_.end(),
                             [&](const Kept& other) { return other.number == kept.number; }));
    extents_->remove_cut(kept.seq);
  }
}

Stats BlockStore::stats() const {
  const Guard guard(mutex_);
  Stats stats = done_;
  for (const Entry& entry : index_) {
    if (entry.pages == 0) continue;
    ++stats.blocks;
    stats.rows += entry.rows;
    stats.live_bytes += extent_pages(entry.pages) * kPage;
  }
  stats.dead_bytes = extents_->dead_pages() * kPage;
  stats.free_bytes = segments_->free_pages() * kPage;
  stats.disk_bytes = segments_->total_pages() * kPage;
  return stats;
}

}  // namespace gs::pinned::store
