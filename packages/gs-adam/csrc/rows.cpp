// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"

#include <algorithm>
#include <atomic>

#include "gs/error.hpp"

namespace gs::adam {
namespace {

// A piece of work for one thread: about a second-level cache, so that pieces balance.
constexpr std::int64_t kPieceBytes = 1 << 18;
constexpr std::int64_t kBytesPerValue = 28;
constexpr std::int64_t kCheckGrain = 1 << 16;

std::int64_t id_at(const Ids& ids, std::int64_t i) {
  if (ids.narrow != nullptr) return ids.narrow[i];
  return ids.wide != nullptr ? ids.wide[i] : i;
}

template <class T>
std::int64_t first_not_increasing(const T* ids, std::int64_t first, std::int64_t last) {
  bool increasing = true;
  for (std::int64_t i = std::max<std::int64_t>(first, 1); i < last; ++i)
    increasing &= ids[i - 1] < ids[i];
  if (increasing) return -1;
  for (std::int64_t i = std::max<std::int64_t>(first, 1); i < last; ++i)
    if (!(ids[i - 1] < ids[i])) return i;
  return -1;
}

// Calls of one thread reuse it, so that a step allocates nothing.
std::vector<Segment>& scratch_segments() {
  static thread_local std::vector<Segment> segments;
  return segments;
}

}  // namespace

RunRows chosen_kernel(Simd level) {
#if defined(GS_WITH_AVX512)
  if (level == Simd::kAvx512) return run_rows_avx512;
#endif
#if defined(GS_WITH_AVX2)
  if (level == Simd::kAvx2) return run_rows_avx2;
#endif
  (void)level;
  return run_rows_scalar;
}

void check_ids(const Ids& ids, std::int64_t n_rows, const char* name, ThreadPool& pool) {
  if (ids.narrow == nullptr && ids.wide == nullptr) return;
  if (ids.size == 0) return;
  std::atomic<std::int64_t> wrong{-1};
  pool.parallel_for(0, ids.size, kCheckGrain, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t at = ids.narrow != nullptr ? first_not_increasing(ids.narrow, first, last)
                                                  : first_not_increasing(ids.wide, first, last);
    if (at >= 0) wrong.store(at);
  });
  const std::int64_t at = wrong.load();
  GS_CHECK(at < 0, name, " must be sorted and unique, got ", id_at(ids, at), " after ",
           id_at(ids, at - 1), " at position ", at);
  GS_CHECK_AS(RangeError, id_at(ids, 0) >= 0 && id_at(ids, ids.size - 1) < n_rows, name,
              " must be in [0, ", n_rows, "), got ",
              id_at(ids, 0) < 0 ? id_at(ids, 0) : id_at(ids, ids.size - 1));
}

void Rows::check_turn(std::int32_t step, const Ids& rows, std::int32_t floor,
                      ThreadPool& pool) const {
  if (last_step_ == nullptr) return;
  const bool dense = semantics_ == Semantics::kDense;
  std::atomic<std::int64_t> wrong{-1};
  pool.parallel_for(0, rows.size, kCheckGrain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      if (i + 32 < last) __builtin_prefetch(last_step_ + id_at(rows, i + 32));
      const std::int32_t done = std::max(floor, last_step_[id_at(rows, i)]);
      if (done >= step || (dense && done != step - 1)) wrong.store(id_at(rows, i));
    }
  });
  const std::int64_t row = wrong.load();
  if (row < 0) return;
  const std::int32_t done = std::max(floor, last_step_[row]);
  GS_CHECK(done < step, "rows must be updated once a step, got row ", row,
           " in step ", step, " after its update in step ", done);
  GS_CHECK(false, "rows must be updated in the order of steps, got row ", row, " in step ", step,
           " before its update in step ", step - 1);
}

Job Rows::job(const StepPlan* plan, const Ids& rows, const Gradients& grads,
              std::vector<Segment>& segments) const {
  segments.resize(tensors_.size());
  for (std::size_t k = 0; k < tensors_.size(); ++k) {
    const Tensor& t = tensors_[k];
    Segment& s = segments[k];
    s = Segment{};
    s.param = t.param;
    s.exp_avg = t.exp_avg;
    s.exp_avg_sq = t.exp_avg_sq;
    s.param_stride = t.param_stride;
    s.exp_avg_stride = t.exp_avg_stride;
    s.exp_avg_sq_stride = t.exp_avg_sq_stride;
    s.width = t.width;
    if (!grads.tensors.empty()) {
      s.grad = grads.tensors[k].data;
      s.grad_stride = grads.tensors[k].stride;
    }
    if (plan != nullptr) {
      s.step = plan->constants(t.group);
      s.before = plan->before(t.group);
      s.after = plan->after(t.group);
    }
  }
  Job job{};
  job.segments = segments.data();
  job.n_segments = static_cast<std::int32_t>(segments.size());
  job.rows = rows;
  job.has_grads = !grads.tensors.empty();
  job.grads_by_row = grads.by_row;
  job.sleeps = semantics_ == Semantics::kDeferred;
  job.absent = job.sleeps ? Absent::kSleep : Absent::kStep;
  job.last_step = last_step_;
  job.step = plan != nullptr ? plan->step() : 0;
  job.skip_non_finite = skip_non_finite_;
  return job;
}

std::int64_t Rows::run(const Job& job, ThreadPool& pool) const {
  std::int64_t row_bytes = 0;
  for (const Tensor& t : tensors_) row_bytes += kBytesPerValue * t.width;
  const std::int64_t grain = std::max<std::int64_t>(kPieceBytes / std::max<std::int64_t>(row_bytes, 1), 1);
  std::atomic<std::int64_t> bad_rows{0};
  pool.parallel_for(0, job.rows.size, grain, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t bad = kernel_(job, first, last);
    if (bad != 0) bad_rows.fetch_add(bad);
  });
  return bad_rows.load();
}

std::int64_t Rows::update(const StepPlan& plan, const Ids& rows, const Gradients& grads,
                          ThreadPool& pool) const {
  Job work = job(&plan, rows, grads, scratch_segments());
  // A skipped row stands still where rows without a gradient do.
  if (semantics_ == Semantics::kSparse && work.has_grads) work.absent = Absent::kNothing;
  return run(work, pool);
}

void Rows::update_rest(const StepPlan& plan, ThreadPool& pool) const {
  constexpr std::int64_t kBlock = 256;
  const Job whole = job(&plan, Ids{nullptr, nullptr, n_rows_}, {}, scratch_segments());
  pool.parallel_for(0, n_rows_, kBlock, [&](std::int64_t first, std::int64_t last) {
    std::int64_t rest[kBlock];
    std::int64_t n = 0;
    for (std::int64_t row = first; row < last; ++row)
      if (last_step_[row] < plan.step()) rest[n++] = row;
    if (n == 0) return;
    Job part = whole;
    part.rows = Ids{nullptr, rest, n};
    kernel_(part, 0, n);
  });
}

void Rows::flush(const StepPlan& plan, const Ids& rows, ThreadPool& pool) const {
  run(job(&plan, rows, {}, scratch_segments()), pool);
}

void Rows::lookahead(const StepPlan* plan, bool steps, const Ids& rows, const Ids& pending,
                     const Gradients& grads, const std::vector<Matrix>& out,
                     ThreadPool& pool) const {
  std::vector<Segment>& segments = scratch_segments();
  Job work = job(plan, rows, grads, segments);
  for (std::size_t k = 0; k < segments.size(); ++k) {
    segments[k].out = out[k].data;
    segments[k].out_stride = out[k].stride;
  }
  work.pending = pending;
  work.use_pending = true;
  if (semantics_ == Semantics::kSparse || (!steps && semantics_ == Semantics::kDense))
    work.absent = Absent::kNothing;
  if (plan == nullptr) {
    work.absent = Absent::kNothing;
    work.step = INT32_MAX;
  }
  run(work, pool);
}

}  // namespace gs::adam
