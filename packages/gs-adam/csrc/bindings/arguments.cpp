// SPDX-License-Identifier: Apache-2.0
#include "bindings/arguments.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>

namespace gs::adam {
namespace {

using python::Array;

std::string item(const char* name, std::size_t k) {
  return std::string(name) + "[" + std::to_string(k) + "]";
}

// A (rows, ...) float32 CPU array with unit stride within a row.
Array matrix(py::handle object, const std::string& name) {
  Array array(object, name.c_str());
  (void)array.data<float>();
  array.on(-1).row_contiguous();
  GS_CHECK(array.ndim() >= 1, name, " must have rows, got a scalar");
  return array;
}

void check_width(const Array& array, std::int64_t width) {
  GS_CHECK(array.inner_size() == width, array.name(), " must have ", width,
           " values a row, got shape ", array.shape_text());
}

// Of rows that begin at or after the first ones: whether both have an element.
bool are_shared(const Columns& first, const Columns& later) {
  constexpr std::int64_t kBytes = sizeof(float);
  const auto apart = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(later.data) -
                                               reinterpret_cast<std::uintptr_t>(first.data));
  if (apart >= kBytes * ((first.rows - 1) * first.stride + first.width)) return false;
  if (first.rows == 1 || first.stride != later.stride || apart % kBytes != 0) return true;
  const std::int64_t column = apart / kBytes % first.stride;
  return column < first.width || column + later.width > first.stride;
}

void check_pair(const Columns& columns, const Columns& others) {
  if (columns.rows * columns.width == 0 || others.rows * others.width == 0) return;
  const bool is_first = std::less<>()(columns.data, others.data);
  GS_CHECK(!(is_first ? are_shared(columns, others) : are_shared(others, columns)),
           item(columns.list, columns.index), " must have memory of its own, got some of ",
           item(others.list, others.index));
}

// A stride that makes rows overlap would let one row's update change another's.
std::int64_t writable_stride(const Array& array) {
  array.writable();
  GS_CHECK(array.size(0) <= 1 || array.row_stride() >= array.inner_size(), array.name(),
           " must have rows that do not overlap, got a row stride of ", array.row_stride(), " for ",
           array.inner_size(), " values");
  return array.row_stride();
}

void check_count(std::size_t n, const char* name, std::size_t expected) {
  GS_CHECK(n == expected, name, " must have one entry a parameter (", expected, "), got ", n);
}

py::sequence sequence_from(py::handle object, const char* name) {
  GS_CHECK_AS(KindError, PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()), name,
              " must be a list of arrays, got ",
              py::str(py::type::of(object).attr("__name__")).cast<std::string>());
  return py::reinterpret_borrow<py::sequence>(object);
}

}  // namespace

std::shared_ptr<ThreadPool> shared_pool(int n_threads) {
  static std::mutex mutex;
  // Never destroyed: a thread may still work while the process ends.
  static auto* const pools = new std::map<int, std::shared_ptr<ThreadPool>>();
  const std::lock_guard<std::mutex> lock(mutex);
  const int size = n_threads > 0 ? n_threads : ThreadPool::usable_cpus();
  std::shared_ptr<ThreadPool>& pool = (*pools)[size];
  if (!pool) pool = std::make_shared<ThreadPool>(size);
  return pool;
}

ThreadPool& callers_pool() {
  static auto* const pool = new ThreadPool(std::min(8, ThreadPool::usable_cpus()));
  return *pool;
}

Ids ids_from(py::handle object, const char* name, std::int64_t n_rows) {
  if (object.is_none()) return {nullptr, nullptr, n_rows};
  const Array array(object, name);
  array.shape({python::kAny}).on(-1).contiguous();
  // An array without elements may have no address; one that is never read marks the kind of ids.
  static const std::int32_t none = 0;
  if (array.size(0) == 0) return {&none, nullptr, 0};
  if (array.is<std::int32_t>()) return {array.data<std::int32_t>(), nullptr, array.size(0)};
  GS_CHECK_AS(KindError, array.is<std::int64_t>(), name, " must be int32 or int64, got ",
              array.dtype_text());
  return {nullptr, array.data<std::int64_t>(), array.size(0)};
}

Ids device_ids_from(py::handle object, const char* name, int device) {
  const Array array(object, name);
  array.shape({python::kAny}).on(device).contiguous();
  if (array.is<std::int32_t>()) return {array.data<std::int32_t>(), nullptr, array.size(0)};
  GS_CHECK_AS(KindError, array.is<std::int64_t>(), name, " must be int32 or int64, got ",
              array.dtype_text());
  return {nullptr, array.data<std::int64_t>(), array.size(0)};
}

Gradients gradients_from(py::handle object, const char* name, const std::vector<Tensor>& tensors,
                         const Ids& rows, std::int64_t n_rows) {
  Gradients grads;
  if (object.is_none()) return grads;
  const py::sequence list = sequence_from(object, name);
  check_count(list.size(), name, tensors.size());
  std::vector<Columns> read;
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    const Array array = matrix(list[k], item(name, k));
    check_width(array, tensors[k].width);
    const bool by_row = array.size(0) != rows.size;
    GS_CHECK(!by_row || array.size(0) == n_rows, array.name(), " must have ", rows.size,
             " rows (or ", n_rows, "), got shape ", array.shape_text());
    GS_CHECK(k == 0 || by_row == grads.by_row, name,
             " must have the same number of rows each, got ", array.size(0), " in ", array.name());
    grads.by_row = by_row;
    grads.tensors.push_back({array.data<float>(), array.row_stride()});
    read.push_back(
        {name, k, array.data<float>(), array.size(0), array.row_stride(), tensors[k].width});
  }
  check_apart(read, written_by(tensors, n_rows));
  return grads;
}

std::vector<Matrix> outputs_from(py::handle object, const std::vector<Tensor>& tensors,
                                 std::int64_t n_rows, std::int64_t count) {
  const py::sequence list = sequence_from(object, "out");
  check_count(list.size(), "out", tensors.size());
  std::vector<Matrix> outputs;
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    const Array array = matrix(list[k], item("out", k));
    check_width(array, tensors[k].width);
    GS_CHECK(array.size(0) == count, array.name(), " must have ", count, " rows, got shape ",
             array.shape_text());
    outputs.push_back({array.data<float>(), writable_stride(array)});
  }
  std::vector<Columns> written = written_by(tensors, n_rows);
  for (std::size_t k = 0; k < outputs.size(); ++k)
    written.push_back({"out", k, outputs[k].data, count, outputs[k].stride, tensors[k].width});
  check_apart(written);
  return outputs;
}

std::vector<Columns> written_by(const std::vector<Tensor>& tensors, std::int64_t n_rows) {
  std::vector<Columns> written;
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    const Tensor& t = tensors[k];
    written.push_back({"params", k, t.param, n_rows, t.param_stride, t.width});
    written.push_back({"exp_avg", k, t.exp_avg, n_rows, t.exp_avg_stride, t.width});
    written.push_back({"exp_avg_sq", k, t.exp_avg_sq, n_rows, t.exp_avg_sq_stride, t.width});
  }
  return written;
}

std::vector<Tensor> tensors_from(const py::list& params, const py::list& exp_avg,
                                 const py::list& exp_avg_sq, const std::vector<int>& groups,
                                 std::int64_t* n_rows) {
  GS_CHECK(params.size() > 0, "params must not be empty");
  GS_CHECK(params.size() <= kMostSegments, "params must be at most ", kMostSegments,
           " tensors, got ", params.size());
  check_count(exp_avg.size(), "exp_avg", params.size());
  check_count(exp_avg_sq.size(), "exp_avg_sq", params.size());
  check_count(groups.size(), "groups", params.size());
  std::vector<Tensor> tensors;
  for (std::size_t k = 0; k < params.size(); ++k) {
    const Array param = matrix(params[k], item("params", k));
    const Array average = matrix(exp_avg[k], item("exp_avg", k));
    const Array square = matrix(exp_avg_sq[k], item("exp_avg_sq", k));
    if (k == 0) *n_rows = param.size(0);
    GS_CHECK(param.size(0) == *n_rows, param.name(), " must have ", *n_rows,
             " rows as params[0], got shape ", param.shape_text());
    for (const Array* state : {&average, &square}) {
      GS_CHECK(state->size(0) == *n_rows, state->name(), " must have ", *n_rows,
               " rows as its parameter, got shape ", state->shape_text());
      check_width(*state, param.inner_size());
    }
    tensors.push_back({param.data<float>(), average.data<float>(), square.data<float>(),
                       writable_stride(param), writable_stride(average), writable_stride(square),
                       param.inner_size(), groups[k]});
  }
  GS_CHECK(*n_rows < INT32_MAX, "params must have fewer than 2**31 - 1 rows, got ", *n_rows);
  check_apart(written_by(tensors, *n_rows));
  return tensors;
}

void check_apart(const std::vector<Columns>& written) {
  for (std::size_t k = 0; k < written.size(); ++k)
    for (std::size_t j = 0; j < k; ++j) check_pair(written[k], written[j]);
}

void check_apart(const std::vector<Columns>& read, const std::vector<Columns>& written) {
  for (const Columns& columns : read)
    for (const Columns& others : written) check_pair(columns, others);
}

}  // namespace gs::adam
