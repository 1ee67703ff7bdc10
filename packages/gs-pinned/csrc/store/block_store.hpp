// SPDX-License-Identifier: Apache-2.0
// Blocks of rows on disk, with snapshots that outlast the end of the process and a power cut.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "store/extents.hpp"
#include "store/file_calls.hpp"
#include "store/format.hpp"
#include "store/io_pool.hpp"
#include "store/segments.hpp"

namespace gs::pinned::store {

struct OpenOptions {
  std::int64_t snapshot = -1;  // -1: the newest that is whole
  bool read_only = false;
  int threads = 16;
};

struct Stats {
  std::uint64_t blocks = 0, rows = 0;
  std::uint64_t live_bytes = 0, dead_bytes = 0, free_bytes = 0, disk_bytes = 0;
  std::uint64_t records_read = 0, bytes_read = 0, records_written = 0, bytes_written = 0;
};

/// Thread-safe. A store belongs to its process: one that is_inherited() must be neither used nor
/// deleted, since its threads, and whoever held its locks, are the parent's.
class BlockStore {
 public:
  /// Makes the folder and an empty snapshot in it.
  static void create(const FileCalls& calls, const std::string& path, const Layout& layout);

  BlockStore(FileCalls calls, std::string path, const OpenOptions& options);
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;
  /// Waits for what was asked.
  ~BlockStore();

  /// Waits for what was asked, and lets other writers in. Later calls throw.
  void close();

  /// Writes blocks[i], of counts[i] rows, from row firsts[i] of each plane's array on. The arrays
  /// stay unchanged until the ticket is done. Throws before anything is written where an argument
  /// is wrong. Later calls win over earlier ones.
  std::shared_ptr<Ticket> write(const std::vector<std::uint32_t>& blocks,
                                const std::vector<std::uint32_t>& counts,
                                const std::vector<std::uint64_t>& firsts,
                                const std::vector<const char*>& planes, std::uint32_t step);

  /// Reads blocks[i] to row firsts[i] of each plane's array, null for planes that are not wanted.
  /// Sees the writes that were done before the call. `counts` is what counts() returned: a block
  /// that has changed its rows since is an error.
  std::shared_ptr<Ticket> read(const std::vector<std::uint32_t>& blocks,
                               const std::vector<std::uint32_t>& counts,
                               const std::vector<std::uint64_t>& firsts,
                               const std::vector<char*>& planes);

  /// Makes what was written until now outlast everything; returns the snapshot's number. Keeps the
  /// last `keep` snapshots. Waits for no write: ask for those that are done.
  std::uint32_t snapshot(std::string_view state, std::uint32_t keep);

  /// Rows of blocks. Throws gs::RangeError for a block that was never written.
  std::vector<std::uint32_t> counts(const std::vector<std::uint32_t>& blocks) const;
  /// The blocks that exist, rising.
  std::vector<std::uint32_t> blocks() const;
  /// Reads those blocks' records and returns what is wrong, a line each.
  std::vector<std::string> verify(const std::vector<std::uint32_t>& blocks);

  const Layout& layout() const { return layout_; }
  std::string state() const;
  /// Lets go of state(), which is empty from then on.
  void forget_state();
  std::uint32_t opened_snapshot() const { return opened_.number; }
  std::vector<std::uint32_t> snapshots() const;
  /// Snapshots that were found damaged when the store was opened, a line each.
  const std::vector<std::string>& damaged() const { return damaged_; }
  bool is_direct() const { return is_direct_; }
  bool is_read_only() const;
  bool is_inherited() const;
  Stats stats() const;

 private:
  struct Kept {
    std::uint32_t number;
    std::uint64_t seq;
  };
  struct Unwritten {
    std::uint64_t seq;
    std::string reason;
  };
  using Guard = std::lock_guard<std::mutex>;

  std::string snapshot_path(std::uint32_t number) const;
  std::string where(const Entry& entry) const;
  class Pinned;
  using Pins = std::vector<std::shared_ptr<const Pinned>>;

  std::vector<Snapshot> load_snapshots(const OpenOptions& options);
  void attach_segments(const std::vector<Snapshot>& snapshots, bool writable);
  void check_extents() const;
  void add_free_space(const std::vector<Snapshot>& snapshots);
  void check_writable() const;
  const Entry& entry_of(std::uint32_t block) const;
  void refuse_writes(const std::string& reason);
  void write_one(const Entry& wanted, const std::vector<const char*>& planes, IoBuffer& buffer);
  void commit(const Entry& entry);
  void give_up(const Entry& entry, const std::string& reason);
  Pins pinned(const std::vector<std::uint32_t>& blocks);
  void read_one(const Entry& entry, const std::vector<char*>& planes, bool is_head_alone,
                char* buffer);
  void forget_cut(std::uint64_t seq);
  void remove_old_snapshots(std::uint32_t keep);

  const FileCalls calls_;
  const std::string path_;
  Layout layout_;
  File lock_;
  bool is_direct_ = false;
  Snapshot opened_;  // its entries went to index_; the lock below guards its state
  std::vector<std::string> damaged_;
  std::vector<std::uint32_t> damaged_numbers_;
  std::unique_ptr<Segments> segments_;
  const pid_t owner_;

  std::mutex snapshot_mutex_;  // one snapshot, or the end, at a time
  mutable std::mutex mutex_;   // of what follows
  std::vector<Entry> index_;   // by block
  std::unique_ptr<Extents> extents_;
  std::uint64_t seq_ = 0;
  std::uint32_t next_snapshot_ = 0;
  std::vector<Kept> kept_;                        // by rising number
  std::map<std::uint32_t, Unwritten> unwritten_;  // blocks whose last write failed
  std::string refusal_;                           // why nothing can be written; empty: it can
  Stats done_;                                    // its counts of reads and writes

  std::unique_ptr<IoPool> pool_;  // last: its tasks use all the others
};

}  // namespace gs::pinned::store
