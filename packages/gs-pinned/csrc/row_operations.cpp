// SPDX-License-Identifier: Apache-2.0
#include "row_operations.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "gs/error.hpp"
#include "host_memory.hpp"
#include "pages.hpp"
#include "pool.hpp"

namespace gs::pinned {
namespace {

constexpr std::int64_t kScratchBytes = 8 << 20;

// Row first + i of `to` from row ids[first + i] of `from`.
Transfer rows_from(char* from, char* to, std::int64_t row_bytes, Ids ids, std::int64_t n) {
  Transfer t;
  t.whole = from;
  t.whole_stride = t.row_bytes = row_bytes;
  t.whole_ids = ids;
  t.parts[0] = Part{to, row_bytes, 0, row_bytes};
  t.n_parts = 1;
  t.n = n;
  return t;
}

// Memory for a moment, in huge pages that all threads have touched: page faults of one thread would
// take longer than the rows do.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes)
      : bytes_(round_up(bytes, kHugePageBytes)), data_(reserve_pages(bytes_)) {
    try {
      commit_pages(data_, bytes_);
    } catch (...) {
      unreserve_pages(data_, bytes_);
      throw;
    }
  }
  ~Scratch() { unreserve_pages(data_, bytes_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  char* data() const { return static_cast<char*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

}  // namespace

void keep_rows(char* rows, std::int64_t row_bytes, Ids ids, std::int64_t n) {
  const std::int64_t chunk = std::max<std::int64_t>(1, kScratchBytes / row_bytes);
  std::unique_ptr<char[]> scratch;
  std::int64_t i = 0;
  while (i < n && id_at(ids, i) == i) ++i;
  while (i < n) {
    // Rows i .. id - 1 are free to be written while rows from id on are read.
    const std::int64_t gap = id_at(ids, i) - i;
    char* const to = rows + i * row_bytes;
    if (gap >= std::min(chunk, n - i)) {
      const std::int64_t count = std::min(gap, n - i);
      transfer_on_host(rows_from(rows, to, row_bytes, ids.from(i), count));
      i += count;
      continue;
    }
    const std::int64_t count = std::min(chunk, n - i);
    if (!scratch) scratch.reset(new char[static_cast<std::size_t>(chunk * row_bytes)]);
    transfer_on_host(rows_from(rows, scratch.get(), row_bytes, ids.from(i), count));
    transfer_on_host(rows_from(scratch.get(), to, row_bytes, Ids{}, count));
    i += count;
  }
}

void permute_rows(char* rows, std::int64_t row_bytes, Ids ids, std::int64_t n) {
  if (n == 0) return;
  // A slab of columns at a time: gathered into scratch, then written back.
  const std::int64_t share = std::max(row_bytes / 64, kScratchBytes / n);
  const std::int64_t slab = std::min(row_bytes, std::max<std::int64_t>(64, share / 64 * 64));
  const auto bytes = static_cast<std::size_t>(slab * n);
  const std::size_t available = available_bytes();
  GS_CHECK_AS(MemoryError, bytes <= available, "permuting ", n, " rows takes ", bytes,
              " bytes of host memory beside them, more than the ", available, " bytes available");
  const Scratch scratch(bytes);
  for (std::int64_t column = 0; column < row_bytes; column += slab) {
    const std::int64_t width = std::min(slab, row_bytes - column);
    Transfer t;
    t.whole = rows + column;
    t.whole_stride = row_bytes;
    t.row_bytes = width;
    t.whole_ids = ids;
    t.parts[0] = Part{scratch.data(), width, 0, width};
    t.n_parts = 1;
    t.n = n;
    transfer_on_host(t);
    t.whole_ids = Ids{};
    t.to_parts = false;
    transfer_on_host(t);
  }
}

void check_increasing(Ids ids, std::int64_t n, std::int64_t rows, const char* name) {
  check_ids(ids, n, rows, name, false);
  for (std::int64_t i = 1; i < n; ++i)
    GS_CHECK(id_at(ids, i - 1) < id_at(ids, i), name, " must increase strictly, got ",
             id_at(ids, i - 1), " before ", id_at(ids, i));
}

void check_permutation(Ids ids, std::int64_t n) {
  check_ids(ids, n, n, "perm", false);
  std::vector<std::atomic<std::uint64_t>> seen(static_cast<std::size_t>((n + 63) / 64));
  std::atomic<std::int64_t> twice{-1};
  pool().parallel_for(0, n, 1 << 16, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t id = id_at(ids, i);
      const std::uint64_t bit = std::uint64_t{1} << (id % 64);
      const std::uint64_t before =
          seen[static_cast<std::size_t>(id / 64)].fetch_or(bit, std::memory_order_relaxed);
      if (before & bit) twice = id;
    }
  });
  GS_CHECK(twice < 0, "perm must hold each row once, got ", twice, " more than once");
}

}  // namespace gs::pinned
