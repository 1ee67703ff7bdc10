// SPDX-License-Identifier: Apache-2.0
#include "bindings/row_arguments.hpp"

#include "gs/error.hpp"

namespace py = pybind11;

namespace gs::pinned {

using python::Array;

namespace {

Element element_named(const std::string& name, const char* argument) {
  if (name == "float32") return Element::kFloat32;
  if (name == "float16") return Element::kFloat16;
  if (name == "uint8") return Element::kUint8;
  if (name == "int32") return Element::kInt32;
  GS_CHECK_AS(KindError, name == "int64", argument,
              " must be float32, float16, uint8, int32 or int64, got ", name);
  return Element::kInt64;
}

}  // namespace

Rows Rows::of_memory(std::shared_ptr<Memory> memory, std::int64_t first_byte, std::int64_t rows,
                     std::int64_t row_bytes, const std::string& dtype, bool to_come) {
  const std::size_t size = to_come ? memory->reserved() : memory->size();
  GS_CHECK(first_byte >= 0 && rows >= 0 && row_bytes > 0 &&
               static_cast<std::size_t>(first_byte + rows * row_bytes) <= size,
           "rows must lie inside the memory of ", size, " bytes, got ", rows, " rows of ",
           row_bytes, " bytes from byte ", first_byte);
  Rows result;
  result.data = memory->data() + first_byte;
  result.memory = std::move(memory);
  result.rows = rows;
  result.row_bytes = result.stride = row_bytes;
  result.dtype = dtype;
  return result;
}

Rows Rows::of_array(py::handle object, const char* name) {
  Rows result;
  auto array = std::make_shared<Array>(object, name);
  GS_CHECK(array->ndim() >= 1, name, " must have rows, got a scalar");
  array->row_contiguous();
  result.dtype = array->dtype_text();
  (void)element_named(result.dtype, name);
  result.data = array->bytes();
  result.rows = array->size(0);
  result.row_bytes = array->inner_size() * array->item_bytes();
  result.stride = array->row_stride() * array->item_bytes();
  result.device = array->device();
  result.array = std::move(array);
  return result;
}

IdArray::IdArray(py::handle object, const char* name, std::int64_t n, int device) {
  if (object.is_none()) return;
  array = std::make_unique<Array>(object, name);
  array->shape({n}).contiguous().on(device);
  ids.wide = array->is<std::int64_t>();
  GS_CHECK_AS(KindError, ids.wide || array->is<std::int32_t>(), name,
              " must be int32 or int64, got ", array->dtype_text());
  ids.data = array->bytes();
}

void check_same_width(const Ids& a, const Ids& b, const char* names) {
  GS_CHECK_AS(KindError, a.data == nullptr || b.data == nullptr || a.wide == b.wide, names,
              " must be of one type, got int32 and int64");
}

Prepared prepare(const Rows& rows, const PartArrays& parts, bool to_parts, const char* name) {
  if (name == nullptr) name = to_parts ? "out" : "values";
  GS_CHECK(!parts.empty() && parts.size() <= kMaxParts, name, " must be 1 to ", kMaxParts,
           " arrays, got ", parts.size());
  GS_CHECK(rows.row_bytes <= kMaxRowBytes, "table must have rows of at most ", kMaxRowBytes,
           " bytes, got ", rows.row_bytes);
  Prepared prepared;
  Transfer& t = prepared.transfer;
  t.whole = rows.data;
  t.whole_stride = rows.stride;
  t.whole_rows = rows.rows;
  t.row_bytes = rows.row_bytes;
  t.to_parts = to_parts;
  t.element = element_named(rows.dtype, "table");
  if (!to_parts && rows.array) {
    rows.array->writable();
    check_rows_apart(rows.columns(), "table");
  }
  for (const auto& [object, offset] : parts) {
    auto array = std::make_unique<Array>(object, name);
    GS_CHECK(array->ndim() >= 1, name, " must have rows, got a scalar");
    array->row_contiguous();
    GS_CHECK_AS(KindError, array->dtype_text() == rows.dtype, name, " must be ", rows.dtype,
                " like the table, got ", array->dtype_text());
    if (to_parts) array->writable();
    if (prepared.arrays.empty()) {
      prepared.device = array->device();
      t.parts_rows = array->size(0);
    }
    array->on(prepared.device);
    GS_CHECK(array->size(0) == t.parts_rows, name, " must have one number of rows, got ",
             t.parts_rows, " and ", array->size(0));
    const std::int64_t bytes = array->inner_size() * array->item_bytes();
    GS_CHECK(offset >= 0 && bytes > 0 && offset + bytes <= rows.row_bytes, name,
             " must have rows that fit into the table's of ", rows.row_bytes / array->item_bytes(),
             " elements, got shape ", array->shape_text());
    const Part part{array->bytes(), array->row_stride() * array->item_bytes(), offset, bytes};
    if (to_parts) {
      const Columns written{part.data, part.stride, t.parts_rows, bytes};
      check_rows_apart(written, name);
      check_written_once(written, name, t);
    }
    t.parts[t.n_parts++] = part;
    prepared.arrays.push_back(std::move(array));
  }
  GS_CHECK(
      rows.device < 0 || rows.device == prepared.device,
      "table must be in host memory or on the device of the other arrays, got cuda:", rows.device);
  return prepared;
}

}  // namespace gs::pinned
