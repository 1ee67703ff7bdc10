// SPDX-License-Identifier: Apache-2.0
// Memory that direct transfers can use.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "gs/error.hpp"
#include "store/format.hpp"

namespace gs::pinned::store {

/// Bytes from a page's start on, taken with the first use; not initialised.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {}

  /// Throws MemoryError where there is no memory; a later call tries again.
  char* data() {
    if (!data_) data_.reset(static_cast<char*>(std::aligned_alloc(kPage, bytes_)));
    GS_CHECK_AS(MemoryError, data_ != nullptr, "no ", bytes_, " bytes for a record");
    return data_.get();
  }

 private:
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  const std::size_t bytes_;
  std::unique_ptr<char, Free> data_;
};

}  // namespace gs::pinned::store
