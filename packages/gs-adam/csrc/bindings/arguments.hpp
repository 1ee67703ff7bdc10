// SPDX-License-Identifier: Apache-2.0
// What Python hands over, checked and turned into the plain structs of csrc/.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "gs/python/array.hpp"
#include "gs/python/gil.hpp"
#include "gs/thread_pool.hpp"
#include "rows.hpp"

namespace gs::adam {

namespace py = pybind11;

/// One pool per number of threads, shared by all optimizers of the module; 0: one per processor.
std::shared_ptr<ThreadPool> shared_pool(int n_threads);

/// For what a caller is waiting for: not an optimizer's pool, which may be at work for long.
ThreadPool& callers_pool();

/// Row ids: (R,) int32 or int64 on the CPU; None is all rows.
Ids ids_from(py::handle object, const char* name, std::int64_t n_rows);

/// The same on a CUDA device; never None.
Ids device_ids_from(py::handle object, const char* name, int device);

/// Whether accesses of 16 bytes may begin there.
inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// A list of (rows, ...) float32 CPU arrays aligned with the tensors of n_rows rows, with memory of
/// their own, or None for zero.
Gradients gradients_from(py::handle object, const char* name, const std::vector<Tensor>& tensors,
                         const Ids& rows, std::int64_t n_rows);

/// A list of writable (count, ...) float32 CPU arrays aligned with the tensors of n_rows rows, with
/// memory of their own.
std::vector<Matrix> outputs_from(py::handle object, const std::vector<Tensor>& tensors,
                                 std::int64_t n_rows, std::int64_t count);

/// Throws unless params, exp_avg and exp_avg_sq are lists of float32 CPU arrays of one row count,
/// each with memory of its own: as columns of the same rows, if need be.
std::vector<Tensor> tensors_from(const py::list& params, const py::list& exp_avg,
                                 const py::list& exp_avg_sq, const std::vector<int>& groups,
                                 std::int64_t* n_rows);

/// Columns of rows that are read or written.
struct Columns {
  const char* list;  // of which argument, at which index
  std::size_t index;
  const float* data;
  std::int64_t rows, stride, width;
};

std::vector<Columns> written_by(const std::vector<Tensor>& tensors, std::int64_t n_rows);

/// Throws where two share an element.
void check_apart(const std::vector<Columns>& written);

/// Throws where one that is read shares an element with one that is written.
void check_apart(const std::vector<Columns>& read, const std::vector<Columns>& written);

void register_calls(py::module_& module);
void register_schedule(py::module_& module);
void register_rows(py::module_& module);
void register_worker(py::module_& module);
void register_device(py::module_& module);
void register_device_slots(py::module_& module);
void register_device_lookahead(py::module_& module);
void register_memory(py::module_& module);

}  // namespace gs::adam
