// SPDX-License-Identifier: Apache-2.0
#include "pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "gs/error.hpp"
#include "host_memory.hpp"
#include "pool.hpp"

#if defined(GS_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif

namespace gs::pinned {
namespace {

// One thread's share of first touch: several huge pages, so that threads rarely meet.
constexpr std::int64_t kTouchBytes = 16 * kHugePageBytes;

// One call per piece where the kernel offers it (Linux 5.14), one write per page elsewhere.
// Returns false when memory ran out.
bool touch(char* data, std::size_t bytes) {
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno == ENOMEM) return false;
  for (std::size_t at = 0; at < bytes; at += page_bytes())
    reinterpret_cast<volatile char*>(data)[at] = 0;
  return true;
}

}  // namespace

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void* reserve_pages(std::size_t bytes) {
  // Over-reserve by one huge page and give the ends back, so that the range starts on one.
  const std::size_t padded = bytes + kHugePageBytes;
  void* mapped =
      mmap(nullptr, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  GS_CHECK_AS(MemoryError, mapped != MAP_FAILED, "reserving ", bytes,
              " bytes of address space failed: ", std::strerror(errno),
              "; ask for less, of a table a smaller capacity, or raise the limit on address space "
              "(ulimit -v)");
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t data = round_up(begin, kHugePageBytes);
  if (data > begin) munmap(mapped, data - begin);
  const std::uintptr_t end = data + bytes;
  if (begin + padded > end) munmap(reinterpret_cast<void*>(end), begin + padded - end);
  return reinterpret_cast<void*>(data);
}

void unreserve_pages(void* data, std::size_t bytes) noexcept { munmap(data, bytes); }

void commit_pages(void* data, std::size_t bytes) {
  const std::size_t available = available_bytes();
  GS_CHECK_AS(MemoryError, bytes <= available, "committing ", bytes,
              " bytes of host memory would exceed the ", available, " bytes available");
  GS_CHECK_AS(MemoryError, mprotect(data, bytes, PROT_READ | PROT_WRITE) == 0, "committing ", bytes,
              " bytes of host memory failed: ", std::strerror(errno));
  madvise(data, bytes, MADV_HUGEPAGE);  // a hint: not every kernel has huge pages
  try {
    pool().parallel_for(0, static_cast<std::int64_t>(bytes), kTouchBytes,
                        [&](std::int64_t first, std::int64_t last) {
                          GS_CHECK_AS(MemoryError,
                                      touch(static_cast<char*>(data) + first, last - first),
                                      "committing ", bytes,
                                      " bytes of host memory failed: ", std::strerror(ENOMEM));
                        });
  } catch (...) {
    decommit_pages(data, bytes);
    throw;
  }
}

void decommit_pages(void* data, std::size_t bytes) noexcept {
  madvise(data, bytes, MADV_DONTNEED);
  mprotect(data, bytes, PROT_NONE);
}

#if defined(GS_WITH_CUDA)

namespace {

// Runs a call with a device current and restores the previous one. Nothing here may throw.
template <class Call>
cudaError_t on_device(int device, Call&& call) {
  int previous = 0;
  cudaError_t status = cudaGetDevice(&previous);
  if (status == cudaSuccess) status = cudaSetDevice(device);
  if (status == cudaSuccess) {
    status = call();
    (void)cudaSetDevice(previous);
  }
  if (status != cudaSuccess) cudaGetLastError();
  return status;
}

const char* register_pages(void* data, std::size_t bytes, int device) {
  void* seen = nullptr;
  const cudaError_t status = on_device(device, [&] {
    const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    const cudaError_t registered = cudaHostRegister(data, bytes, flags);
    if (registered != cudaSuccess) return registered;
    const cudaError_t mapped = cudaHostGetDevicePointer(&seen, data, 0);
    if (mapped != cudaSuccess) (void)cudaHostUnregister(data);
    return mapped;
  });
  if (status != cudaSuccess) return cudaGetErrorString(status);
  // Kernels and hosts must use one address, because rows go on from chunk to chunk.
  if (seen != data) {
    unlock_pages(data, bytes, Lock::kCuda, device);
    return "the device sees host memory at other addresses";
  }
  // A child process must not share these pages: copy on write would move the parent's away from
  // under the device.
  madvise(data, bytes, MADV_DONTFORK);
  return nullptr;
}

}  // namespace

#endif

const char* lock_pages(void* data, std::size_t bytes, Lock lock, int device) noexcept {
  if (lock == Lock::kMlock) return mlock(data, bytes) == 0 ? nullptr : std::strerror(errno);
#if defined(GS_WITH_CUDA)
  if (lock == Lock::kCuda) return register_pages(data, bytes, device);
#endif
  (void)device;
  return lock == Lock::kNone ? nullptr : "built without CUDA";
}

void unlock_pages(void* data, std::size_t bytes, Lock lock, int device) noexcept {
  if (lock == Lock::kMlock) munlock(data, bytes);
#if defined(GS_WITH_CUDA)
  if (lock == Lock::kCuda) {
    (void)on_device(device, [&] { return cudaHostUnregister(data); });
    madvise(data, bytes, MADV_DOFORK);
  }
#endif
  (void)device;
}

}  // namespace gs::pinned
