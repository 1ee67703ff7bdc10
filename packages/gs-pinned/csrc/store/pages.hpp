// SPDX-License-Identifier: Apache-2.0
// Memory that direct transfers can use.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "gs/error.hpp"
#include "store/format.hpp"

namespace gs::pinned::store {

/// Bytes from a page's start on; not initialised.
class Pages {
 public:
  explicit Pages(std::size_t bytes)
      : data_(static_cast<char*>(std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage))) {
    GS_CHECK_AS(MemoryError, data_ != nullptr, "no ", bytes, " bytes for a record");
  }
  char* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  std::unique_ptr<char, Free> data_;
};

}  // namespace gs::pinned::store
