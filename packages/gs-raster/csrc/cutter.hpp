// SPDX-License-Identifier: Apache-2.0
// Workspaces that are cut into arrays.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gs/error.hpp"

namespace gs::raster {

/// Cuts arrays from a workspace; from none at all, it only counts their bytes.
class Cutter {
 public:
  explicit Cutter(void* workspace = nullptr) : begin_(static_cast<std::byte*>(workspace)) {}

  template <class T>
  T* take(std::int64_t n) {
    return static_cast<T*>(take_bytes(static_cast<std::size_t>(n) * sizeof(T)));
  }

  void* take_bytes(std::size_t n_bytes) {
    void* const here = begin_ == nullptr ? nullptr : begin_ + used_;
    used_ += (n_bytes + kAlignment - 1) / kAlignment * kAlignment;
    return here;
  }

  std::size_t used() const { return used_; }

  void check(std::size_t n_bytes) const {
    GS_CHECK(n_bytes >= used_, "workspace must have ", used_, " bytes, got ", n_bytes);
  }

 private:
  static constexpr std::size_t kAlignment = 256;
  std::byte* begin_;
  std::size_t used_ = 0;
};

}  // namespace gs::raster
