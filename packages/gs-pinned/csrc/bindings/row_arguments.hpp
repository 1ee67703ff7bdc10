// SPDX-License-Identifier: Apache-2.0
// Rows and ids as Python gives them, checked and turned into a transfer.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gs/python/array.hpp"
#include "memory.hpp"
#include "overlap.hpp"
#include "transfer.hpp"

namespace gs::pinned {

/// Whole rows: of a table's memory, or of an array in host or device memory.
struct Rows {
  std::shared_ptr<Memory> memory;        // null for an array
  std::shared_ptr<python::Array> array;  // keeps it alive
  char* data = nullptr;
  std::int64_t rows = 0, row_bytes = 0, stride = 0;
  std::string dtype;
  int device = -1;

  /// `to_come`: of memory that is only reserved as yet, to check a transfer before growing.
  static Rows of_memory(std::shared_ptr<Memory> memory, std::int64_t first_byte, std::int64_t rows,
                        std::int64_t row_bytes, const std::string& dtype, bool to_come);
  static Rows of_array(pybind11::handle object, const char* name);

  Columns columns() const { return {data, stride, rows, row_bytes}; }
};

/// (n,) int32 or int64 on the device of the other arguments; None stands for 0 .. n - 1.
struct IdArray {
  std::unique_ptr<python::Array> array;
  Ids ids;

  IdArray(pybind11::handle object, const char* name, std::int64_t n, int device);
};

void check_same_width(const Ids& a, const Ids& b, const char* names = "ids and slots");

/// Each array with its offset in the row, in bytes.
using PartArrays = std::vector<std::pair<pybind11::object, std::int64_t>>;

/// Holds what a transfer points to, for as long as it is being enqueued or run.
struct Prepared {
  Transfer transfer;
  std::vector<std::unique_ptr<python::Array>> arrays;
  int device = -1;
};

/// A transfer of all rows, as yet without ids; `name` is what the caller calls the arrays.
Prepared prepare(const Rows& rows, const PartArrays& parts, bool to_parts,
                 const char* name = nullptr);

}  // namespace gs::pinned
