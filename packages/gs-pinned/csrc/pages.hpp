// SPDX-License-Identifier: Apache-2.0
// Pages of host memory: address space reserved, then committed, then locked.
#pragma once

#include <cstddef>

namespace gs::pinned {

/// How pages are kept from being swapped out.
enum class Lock {
  kNone,   // pageable
  kCuda,   // cudaHostRegister: page-locked, and readable by every CUDA device of the process
  kMlock,  // mlock: stays in RAM, unknown to CUDA; obeys RLIMIT_MEMLOCK
};

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/// The system's pages, to which every range below is aligned: 4 KiB, on some ARM machines 64 KiB.
std::size_t page_bytes();

/// Reserves address space without memory behind it; returns its first byte. Throws
/// gs::MemoryError.
void* reserve_pages(std::size_t bytes);

/// Gives back what reserve_pages returned.
void unreserve_pages(void* data, std::size_t bytes) noexcept;

/// Makes [data, data + bytes) readable and writable zeros, huge pages where they fit, every page
/// present: touched by all threads in parallel, because the kernel's zeroing is the cost. Throws
/// gs::MemoryError and then leaves the range as it was.
void commit_pages(void* data, std::size_t bytes);

/// Takes the memory away from a committed range; the addresses stay reserved.
void decommit_pages(void* data, std::size_t bytes) noexcept;

/// Page-locks a committed range, by way of `device` where CUDA does it. Returns null, or why the
/// platform refused.
const char* lock_pages(void* data, std::size_t bytes, Lock lock, int device) noexcept;

/// Undoes lock_pages; quiet when the CUDA runtime is already unloading.
void unlock_pages(void* data, std::size_t bytes, Lock lock, int device) noexcept;

}  // namespace gs::pinned
