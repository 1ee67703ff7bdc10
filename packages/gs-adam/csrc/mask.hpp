// SPDX-License-Identifier: Apache-2.0
// Rows given by a mask instead of their ids.
#pragma once

#include <cstdint>
#include <vector>

#include "gs/thread_pool.hpp"

namespace gs::adam {

/// A mask of n bytes, 0 or 1, looked at by several threads.
class Mask {
 public:
  Mask(const std::uint8_t* bytes, std::int64_t n, ThreadPool& pool);

  /// How many rows it chooses.
  std::int64_t count() const { return firsts_.back(); }

  /// Writes their ids in order, count() of them.
  void write(std::int32_t* ids) const;

 private:
  const std::uint8_t* bytes_;
  std::int64_t n_;
  ThreadPool& pool_;
  std::vector<std::int64_t> firsts_;  // chosen rows before each part, and all of them
};

}  // namespace gs::adam
