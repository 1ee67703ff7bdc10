// SPDX-License-Identifier: Apache-2.0
// Memory that direct transfers read and write.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "gs/error.hpp"
#include "pages.hpp"
#include "store/format.hpp"

namespace gs::pinned::store {

/// Bytes from a page's start on, taken with the first use; not initialised. More than a page is
/// taken in huge pages where the system has them: a virtual drive that gets a record in one piece,
/// not in one for each page, moves it in two thirds of the time.
class IoBuffer {
 public:
  explicit IoBuffer(std::size_t bytes)
      : unit_(bytes > kPage ? kHugePageBytes : kPage), bytes_(round_up(bytes, unit_)) {}

  /// Throws MemoryError where there is no memory; a later call tries again.
  char* data() {
    if (!data_) {
      data_.reset(static_cast<char*>(std::aligned_alloc(unit_, bytes_)));
      GS_CHECK_AS(MemoryError, data_ != nullptr, "no ", bytes_, " bytes for a record");
      if (unit_ > kPage) ::madvise(data_.get(), bytes_, MADV_HUGEPAGE);  // a hint, no more
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  const std::size_t unit_;
  const std::size_t bytes_;
  std::unique_ptr<char, Free> data_;
};

}  // namespace gs::pinned::store
