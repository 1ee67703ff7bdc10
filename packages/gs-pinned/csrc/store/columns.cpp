// SPDX-License-Identifier: Apache-2.0
#include "store/columns.hpp"

#include <array>
#include <cstring>

#include "store/bytes.hpp"

namespace gs::pinned::store {
namespace {

// Of a column: its values; zeros; one value; the values of the column before; numbers of values.
enum Code : std::uint8_t { kValues = 0, kZeros = 1, kOneValue = 2, kAsBefore = 3, kTable = 4 };

constexpr std::size_t kUnit = 8, kMostInTable = 256, kWord = 8;

constexpr std::size_t up(std::size_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

// Values are compared as bytes, so that no value of a float is special.
template <class T>
class Column {
 public:
  Column(const char* rows, std::size_t n, std::size_t row_bytes, std::size_t column)
      : at_(rows + column * sizeof(T)), n_(n), row_bytes_(row_bytes) {}

  std::size_t size() const { return n_; }
  T operator[](std::size_t row) const { return get<T>(at_, row * row_bytes_); }

  bool is_one_value() const {
    const T first = (*this)[0];
    for (std::size_t row = 1; row < n_; ++row)
      if ((*this)[row] != first) return false;
    return true;
  }

  bool is_as(const Column& other) const {
    for (std::size_t row = 0; row < n_; ++row)
      if ((*this)[row] != other[row]) return false;
    return true;
  }

 private:
  const char* at_;
  std::size_t n_;
  std::size_t row_bytes_;
};

// Numbers of different values, in the order in which they come first.
template <class T>
class ValueTable {
 public:
  /// The number of a value, a new one where need be; kMostInTable where there is no room.
  std::size_t number_of(T value) {
    std::size_t place = static_cast<std::size_t>(
        (static_cast<std::uint64_t>(value) * 0x9E3779B97F4A7C15u) >> (64 - kBits));
    while (places_[place] != 0) {
      if (values_[places_[place] - 1] == value) return places_[place] - 1u;
      place = (place + 1) % places_.size();
    }
    if (size_ == kMostInTable) return kMostInTable;
    values_[size_++] = value;
    places_[place] = static_cast<std::uint16_t>(size_);
    return size_ - 1;
  }

  std::size_t size() const { return size_; }
  const T* values() const { return values_.data(); }

 private:
  static constexpr std::size_t kBits = 10;
  std::array<T, kMostInTable> values_{};
  std::array<std::uint16_t, std::size_t{1} << kBits> places_{};  // number + 1, 0: free
  std::size_t size_ = 0;
};

template <class T>
std::size_t table_bytes(std::size_t n, std::size_t n_values) {
  return kWord + up(n) + up(n_values * sizeof(T));
}

template <class T>
ColumnPlan plan_of(const Plane& plane, const char* rows, std::size_t n) {
  const auto column = [&](std::size_t k) { return Column<T>(rows, n, plane.row_bytes, k); };
  ColumnPlan plan;
  plan.codes.resize(plane.columns, kValues);
  bool repeats = false;
  for (std::size_t k = 0; k < plane.columns; ++k) {
    if (column(k).is_one_value())
      plan.codes[k] = column(k)[0] == 0 ? kZeros : kOneValue;
    else if (k > 0 && column(k).is_as(column(k - 1)))
      plan.codes[k] = kAsBefore;
    repeats |= plan.codes[k] != kValues;
  }
  if (!repeats) return {};  // a trained plane: tables are not tried
  plan.bytes = up(plane.columns);
  for (std::size_t k = 0; k < plane.columns; ++k) {
    if (plan.codes[k] == kOneValue) plan.bytes += up(sizeof(T));
    if (plan.codes[k] != kValues) continue;
    const std::size_t raw = up(n * sizeof(T));
    ValueTable<T> table;
    std::size_t row = 0;
    while (row < n && table.number_of(column(k)[row]) < kMostInTable) ++row;
    const std::size_t bytes = table_bytes<T>(n, table.size());
    if (row == n && bytes < raw) plan.codes[k] = kTable;
    plan.bytes += plan.codes[k] == kTable ? bytes : raw;
  }
  if (8 * plan.bytes > 7 * n * plane.row_bytes) return {};
  return plan;
}

template <class T>
void encode(const Plane& plane, const ColumnPlan& plan, const char* rows, std::size_t n, char* to) {
  std::memset(to, 0, plan.bytes);
  std::memcpy(to, plan.codes.data(), plan.codes.size());
  char* at = to + up(plane.columns);
  for (std::size_t k = 0; k < plane.columns; ++k) {
    const Column<T> column(rows, n, plane.row_bytes, k);
    if (plan.codes[k] == kOneValue) {
      put(at, 0, column[0]);
      at += up(sizeof(T));
    } else if (plan.codes[k] == kValues) {
      for (std::size_t row = 0; row < n; ++row) put(at, row * sizeof(T), column[row]);
      at += up(n * sizeof(T));
    } else if (plan.codes[k] == kTable) {
      ValueTable<T> table;
      for (std::size_t row = 0; row < n; ++row)
        at[kWord + row] = static_cast<char>(table.number_of(column[row]));
      put(at, 0, std::uint64_t{table.size()});
      std::memcpy(at + kWord + up(n), table.values(), table.size() * sizeof(T));
      at += table_bytes<T>(n, table.size());
    }
  }
}

template <class T>
bool decode(const Plane& plane, const char* from, std::size_t bytes, std::size_t n, char* rows) {
  if (bytes < up(plane.columns)) return false;
  const char* at = from + up(plane.columns);
  std::size_t left = bytes - up(plane.columns);
  const auto take = [&](std::size_t size) {
    if (size > left) return static_cast<const char*>(nullptr);
    left -= size;
    at += size;
    return at - size;
  };
  const auto store = [&](std::size_t k, auto value_of) {
    if (rows == nullptr) return;
    char* const to = rows + k * sizeof(T);
    for (std::size_t row = 0; row < n; ++row) put(to, row * plane.row_bytes, T{value_of(row)});
  };
  for (std::size_t k = 0; k < plane.columns; ++k) {
    switch (static_cast<Code>(from[k])) {
      case kZeros:
        store(k, [](std::size_t) { return T{0}; });
        break;
      case kOneValue: {
        const char* const value = take(up(sizeof(T)));
        if (value == nullptr) return false;
        store(k, [&](std::size_t) { return get<T>(value, 0); });
        break;
      }
      case kAsBefore:
        if (k == 0) return false;
        store(k, [&](std::size_t row) {
          return get<T>(rows, row * plane.row_bytes + (k - 1) * sizeof(T));
        });
        break;
      case kValues: {
        const char* const values = take(up(n * sizeof(T)));
        if (values == nullptr) return false;
        store(k, [&](std::size_t row) { return get<T>(values, row * sizeof(T)); });
        break;
      }
      case kTable: {
        const char* const head = take(kWord + up(n));
        if (head == nullptr) return false;
        const auto n_values = get<std::uint64_t>(head, 0);
        if (n_values > kMostInTable) return false;
        const char* const values = take(up(n_values * sizeof(T)));
        if (values == nullptr) return false;
        const auto number = [&](std::size_t row) {
          return static_cast<unsigned char>(head[kWord + row]);
        };
        for (std::size_t row = 0; row < n; ++row)
          if (number(row) >= n_values) return false;
        store(k, [&](std::size_t row) { return get<T>(values, number(row) * sizeof(T)); });
        break;
      }
      default:
        return false;
    }
  }
  return left == 0;
}

// Calls with a value of the type that a column's values have, or returns `otherwise`.
template <class Result, class Call>
Result by_width(const Plane& plane, Result otherwise, Call call) {
  switch (plane.row_bytes / plane.columns) {
    case 1:
      return call(std::uint8_t{});
    case 2:
      return call(std::uint16_t{});
    case 4:
      return call(std::uint32_t{});
    case 8:
      return call(std::uint64_t{});
    default:
      return otherwise;
  }
}

}  // namespace

ColumnPlan plan_columns(const Plane& plane, const char* rows, std::size_t n) {
  if (n == 0 || plane.columns < 2) return {};
  return by_width(plane, ColumnPlan{},
                  [&](auto value) { return plan_of<decltype(value)>(plane, rows, n); });
}

void encode_columns(const Plane& plane, const ColumnPlan& plan, const char* rows, std::size_t n,
                    char* to) {
  by_width(plane, 0, [&](auto value) {
    encode<decltype(value)>(plane, plan, rows, n, to);
    return 0;
  });
}

bool decode_columns(const Plane& plane, const char* from, std::size_t bytes, std::size_t n,
                    char* rows) {
  return by_width(plane, false,
                  [&](auto value) { return decode<decltype(value)>(plane, from, bytes, n, rows); });
}

}  // namespace gs::pinned::store
