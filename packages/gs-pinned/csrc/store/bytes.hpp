// SPDX-License-Identifier: Apache-2.0
// Numbers at places of a buffer, little-endian.
#pragma once

#include <cstddef>
#include <cstring>

namespace gs::pinned::store {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the store is written as it lies in memory");

template <class T>
void put(char* data, std::size_t offset, const T& value) {
  std::memcpy(data + offset, &value, sizeof(T));
}

template <class T>
T get(const char* data, std::size_t offset) {
  T value;
  std::memcpy(&value, data + offset, sizeof(T));
  return value;
}

}  // namespace gs::pinned::store
