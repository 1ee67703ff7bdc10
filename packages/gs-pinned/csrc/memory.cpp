// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>

#include "gs/error.hpp"

namespace gs::pinned {
namespace {

std::atomic<std::size_t> locked_bytes{0};

}  // namespace

std::size_t Memory::locked_total() { return locked_bytes.load(); }

std::size_t Memory::locked_limit() {
  const char* text = std::getenv("GS_PINNED_LIMIT_BYTES");
  if (text == nullptr || *text == '\0') return std::numeric_limits<std::size_t>::max();
  char* end = nullptr;
  const unsigned long long limit = std::strtoull(text, &end, 10);
  GS_CHECK(*end == '\0' && *text >= '0' && *text <= '9',
           "GS_PINNED_LIMIT_BYTES must be a whole number of bytes, got ", text);
  return limit;
}

Memory::Memory(std::size_t reserved, Lock lock, int device, bool is_counted)
    : reserved_(round_up(std::max<std::size_t>(reserved, 1), page_bytes())),
      lock_(lock),
      device_(device),
      is_counted_(is_counted),
      pid_(getpid()) {
  data_ = static_cast<char*>(reserve_pages(reserved_));
}

Memory::~Memory() {
  if (!is_usable()) {
    in_flight_.forget();
    // Pageable pages are this process's own copies; locked ones were never mapped here.
    if (is_inherited()) unreserve_pages(data_, reserved_);
    return;
  }
  in_flight_.wait();
  unlock_all();
  unreserve_pages(data_, reserved_);
}

bool Memory::is_usable() const { return pid_ == getpid(); }

// A thread that held it when the process forked does not exist in the child.
std::mutex& Memory::mutex() const {
  mutex_process_.renewed([this] {
    (void)mutex_.release();
    mutex_ = std::make_unique<std::mutex>();
  });
  return *mutex_;
}

std::vector<std::size_t> Memory::chunk_ends() const {
  std::lock_guard<std::mutex> lock(mutex());
  std::vector<std::size_t> ends = locked_ends_;
  if (ends.empty() || ends.back() < size_) ends.push_back(size_);  // what locking was refused for
  return ends;
}

void Memory::grow(std::size_t bytes, bool may_be_pageable) {
  std::lock_guard<std::mutex> guard(mutex());
  if (bytes <= size_) return;
  GS_CHECK(bytes <= reserved_, "rows need ", bytes, " bytes, but ", reserved_,
           " were reserved; create the table with a larger capacity");
  const std::size_t old = size_, exact = round_up(bytes, page_bytes());
  const std::size_t limit = is_locked() ? locked_limit() : 0;
  std::size_t target = exact;
  if (old > 0) target = std::max(target, old + std::max(kHugePageBytes, old / 128));
  target = std::min(round_up(target, page_bytes()), reserved_);

  std::string problem;
  if (target > exact) {
    try {
      problem = commit(old, target, limit);
    } catch (const MemoryError&) {
      target = exact;
    }
    if (!problem.empty()) {
      decommit_pages(data_ + old, target - old);
      target = exact;
    }
  }
  if (target == exact) problem = commit(old, target, limit);
  if (!problem.empty()) {
    if (!may_be_pageable) {
      decommit_pages(data_ + old, target - old);
      detail::throw_error<MemoryError>("page-locking ", target - old, " bytes failed: ", problem);
    }
    refusal_ = problem;
    refused_ = true;
  }
  size_ = target;
}

// Why locking was refused; empty when it was not.
std::string Memory::commit(std::size_t begin, std::size_t end, std::size_t limit) {
  commit_pages(data_ + begin, end - begin);
  return is_locked() ? lock_range(begin, end, limit) : "";
}

std::string Memory::lock_range(std::size_t begin, std::size_t end, std::size_t limit) {
  const std::size_t bytes = end - begin;
  if (is_counted_ && locked_bytes.fetch_add(bytes) + bytes > limit) {
    locked_bytes -= bytes;
    return "GS_PINNED_LIMIT_BYTES=" + std::to_string(limit) + " would be exceeded";
  }
  if (const char* problem = lock_pages(data_ + begin, bytes, lock_, device_)) {
    if (is_counted_) locked_bytes -= bytes;
    return problem;
  }
  locked_ends_.push_back(end);
  locked_size_ = end;
  return "";
}

void Memory::unlock_all() noexcept {
  std::size_t begin = 0;
  for (std::size_t end : locked_ends_) {
    unlock_pages(data_ + begin, end - begin, lock_, device_);
    if (is_counted_) locked_bytes -= end - begin;
    begin = end;
  }
  locked_ends_.clear();
}

}  // namespace gs::pinned
