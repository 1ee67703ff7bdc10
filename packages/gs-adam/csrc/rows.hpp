// SPDX-License-Identifier: Apache-2.0
// An optimizer's tensors, and the calls that update rows of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gs/simd_level.hpp"
#include "gs/thread_pool.hpp"
#include "kernel.hpp"
#include "schedule.hpp"

namespace gs::adam {

/// One parameter with its moments: [n_rows, width] float32 each, unit stride within a row.
struct Tensor {
  float* param;
  float* exp_avg;
  float* exp_avg_sq;
  std::int64_t param_stride;
  std::int64_t exp_avg_stride;
  std::int64_t exp_avg_sq_stride;
  std::int64_t width;
  int group;
};

/// A gradient or an output, [rows, width].
struct Matrix {
  float* data;
  std::int64_t stride;
};

/// Gradients of one call.
struct Gradients {
  std::vector<Matrix> tensors;  // one a tensor; empty means zero
  bool by_row = false;          // [n_rows, width], else aligned with the call's rows
};

/// The row kernel of this process, by the instruction set chosen.
RowKernel chosen_kernel(Simd level);

/// Throws gs::Error or gs::RangeError unless ids are sorted, unique and in [0, n_rows).
void check_ids(const Ids& ids, std::int64_t n_rows, const char* name);

/// The same by several threads where there are many.
void check_ids(const Ids& ids, std::int64_t n_rows, const char* name, ThreadPool& pool);

/// Borrowed tensors of equal row count. Calls may run on several threads for disjoint rows.
class Rows {
 public:
  Rows(std::int64_t n_rows, std::vector<Tensor> tensors, std::int32_t* last_step,
       Semantics semantics, RowKernel kernel, bool skip_non_finite)
      : n_rows_(n_rows),
        tensors_(std::move(tensors)),
        last_step_(last_step),
        semantics_(semantics),
        kernel_(kernel),
        skip_non_finite_(skip_non_finite),
        segments_(with_columns(tensors_)) {}

  std::int64_t n_rows() const { return n_rows_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// [n_rows] or null: the step that each row was last updated in.
  const std::int32_t* last_step() const { return last_step_; }

  /// One optimizer step on the rows given. Returns the number of rows with a NaN or Inf gradient.
  /// Throws what check_ids does, and gs::Error when a row cannot be updated in this step: it has
  /// been already, or (dense) has not been in the step before; nothing has changed then. Rows count
  /// as updated in `floor` at least.
  std::int64_t update(const StepPlan& plan, const Ids& rows, const Gradients& grads,
                      std::int32_t floor, ThreadPool& pool) const;

  /// Dense: the zero-gradient step on every row that this step has not updated.
  void update_rest(const StepPlan& plan, ThreadPool& pool) const;

  /// Deferred: rows written as they are after the plan's step; others are so already. Throws what
  /// check_ids does.
  void flush(const StepPlan& plan, const Ids& rows, ThreadPool& pool) const;

  /// Deferred: rows written as they are after the step before the plan's. Throws what check_ids
  /// does.
  void wake(const StepPlan& plan, const Ids& rows, ThreadPool& pool) const;

  /// What update (rows of `pending`, gradients in its order) and flush (the others) will write,
  /// into `out`; nothing of this object is written. `steps` false: as stored, brought up to date.
  /// Throws what check_ids does; nothing has been written then.
  void lookahead(const StepPlan& plan, bool steps, const Ids& rows, const Ids& pending,
                 const Gradients& grads, const std::vector<Matrix>& out, std::int32_t floor,
                 ThreadPool& pool) const;

 private:
  static std::vector<std::size_t> with_columns(const std::vector<Tensor>& tensors);
  Job job(const StepPlan& plan, const Ids& rows, const Gradients& grads,
          const std::vector<Matrix>* out) const;
  class Checks;
  template <class Check>
  std::int64_t run(Job& job, ThreadPool& pool, const Check& check) const;

  std::int64_t n_rows_;
  std::vector<Tensor> tensors_;
  std::int32_t* last_step_;
  Semantics semantics_;
  RowKernel kernel_;
  bool skip_non_finite_;
  std::vector<std::size_t> segments_;  // which of the tensors the kernel is given
};

}  // namespace gs::adam
