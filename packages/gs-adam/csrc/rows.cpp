// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"

#include <algorithm>
#include <array>
#include <atomic>

#include "gs/error.hpp"

namespace gs::adam {
namespace {

// A piece of work for one thread: about a second-level cache, so that pieces balance.
constexpr std::int64_t kPieceBytes = 1 << 18;
constexpr std::int64_t kBytesPerValue = 28;
constexpr std::int64_t kCheckGrain = 1 << 13;

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

std::int64_t first_not_increasing(const Ids& ids, std::int64_t first, std::int64_t last) {
  return ids.narrow != nullptr ? first_not_increasing(ids.narrow, first, last)
                               : first_not_increasing(ids.wide, first, last);
}

void throw_wrong_ids(const Ids& ids, std::int64_t n_rows, const char* name,
                     std::int64_t not_increasing) {
  const std::int64_t at = not_increasing;
  GS_CHECK(at < 0, name, " must be sorted and unique, got ", id_at(ids, at), " after ",
           id_at(ids, at - 1), " at position ", at);
  if (ids.size == 0) return;
  const std::int64_t low = id_at(ids, 0), high = id_at(ids, ids.size - 1);
  GS_CHECK_AS(RangeError, low >= 0 && high < n_rows, name, " must be in [0, ", n_rows, "), got ",
              low < 0 ? low : high);
}

bool is_beside(const Segment& left, const Segment& right) {
  return right.param == left.param + left.width && right.exp_avg == left.exp_avg + left.width &&
         right.exp_avg_sq == left.exp_avg_sq + left.width &&
         right.param_stride == left.param_stride && right.exp_avg_stride == left.exp_avg_stride &&
         right.exp_avg_sq_stride == left.exp_avg_sq_stride &&
         right.step.from_gradient == left.step.from_gradient;
}

/// Cuts columns into items of `lanes`, across tensors that lie side by side.
int cut_items(const Segment* segments, int n_segments, int lanes, Item* items) {
  int n = 0, k = 0;
  std::int64_t offset = 0;
  while (k < n_segments) {
    Item item{k, 1, offset, segments[k].width - offset, {}};
    const bool is_last = k + 1 == n_segments || !is_beside(segments[k], segments[k + 1]);
    if (is_last) {
      ++k;
      offset = 0;
    } else if (item.columns >= lanes) {
      item.columns -= item.columns % lanes;
      offset += item.columns;
    } else {
      offset = item.columns;  // columns taken of the whole item
      std::int64_t taken = item.columns;
      while (taken < lanes && item.parts < kMostParts && k + 1 < n_segments &&
             is_beside(segments[k], segments[k + 1])) {
        item.lane[item.parts++] = static_cast<std::int32_t>(taken);
        ++k;
        offset = std::min<std::int64_t>(lanes - taken, segments[k].width);
        taken += offset;
      }
      item.columns = taken;
    }
    if (k < n_segments && offset == segments[k].width) {
      ++k;
      offset = 0;
    }
    if (item.columns > 0) items[n++] = item;
  }
  return n;
}

// A call's tensors. One thread's calls reuse it, so that a step allocates nothing.
struct Scratch {
  std::array<Segment, kMostSegments> segments;
  std::array<Item, 2 * kMostSegments> items;
};

Scratch& scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

}  // namespace

RowKernel chosen_kernel(Simd level) {
#if defined(GS_WITH_AVX512)
  if (level == Simd::kAvx512) return avx512_kernel();
#endif
#if defined(GS_WITH_AVX2)
  if (level == Simd::kAvx2) return avx2_kernel();
#endif
  (void)level;
  return scalar_kernel();
}

void check_ids(const Ids& ids, std::int64_t n_rows, const char* name, ThreadPool& pool) {
  if (ids.narrow == nullptr && ids.wide == nullptr) return;
  std::atomic<std::int64_t> wrong{-1};
  pool.parallel_for(0, ids.size, kCheckGrain, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t at = first_not_increasing(ids, first, last);
    if (at >= 0) wrong.store(at);
  });
  throw_wrong_ids(ids, n_rows, name, wrong.load());
}

void Rows::check(std::int32_t step, const Ids& rows, std::int32_t floor, ThreadPool& pool) const {
  if (last_step_ == nullptr) return check_ids(rows, n_rows_, "rows", pool);
  const bool dense = semantics_ == Semantics::kDense;
  const bool has_ids = rows.narrow != nullptr || rows.wide != nullptr;
  std::atomic<std::int64_t> wrong{-1}, out_of_turn{-1};
  pool.parallel_for(0, rows.size, kCheckGrain, [&](std::int64_t first, std::int64_t last) {
    if (has_ids) {
      const std::int64_t at = first_not_increasing(rows, first, last);
      if (at >= 0) wrong.store(at);
      if (at >= 0 || id_at(rows, first) < 0 || id_at(rows, last - 1) >= n_rows_) return;
    }
    for (std::int64_t i = first; i < last; ++i) {
      if (i + 32 < last) __builtin_prefetch(last_step_ + id_at(rows, i + 32));
      const std::int32_t done = std::max(floor, last_step_[id_at(rows, i)]);
      if (done >= step || (dense && done != step - 1)) out_of_turn.store(id_at(rows, i));
    }
  });
  if (has_ids) throw_wrong_ids(rows, n_rows_, "rows", wrong.load());
  const std::int64_t row = out_of_turn.load();
  if (row < 0) return;
  const std::int32_t done = std::max(floor, last_step_[row]);
  GS_CHECK(done < step, "rows must be updated once a step, got row ", row, " in step ", step,
           " after its update in step ", done);
  GS_CHECK(false, "rows must be updated in the order of steps, got row ", row, " in step ", step,
           " before its update in step ", step - 1);
}

Job Rows::job(const StepPlan& plan, const Ids& rows, const Gradients& grads,
              const std::vector<Matrix>* out) const {
  auto& [segments, items] = scratch();
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
    if (out != nullptr) {
      s.out = (*out)[k].data;
      s.out_stride = (*out)[k].stride;
    }
    s.step = plan.constants(t.group);
    s.before = plan.before(t.group);
    s.after = plan.after(t.group);
  }
  Job job{};
  job.segments = segments.data();
  job.items = items.data();
  job.n_segments = static_cast<std::int32_t>(tensors_.size());
  job.n_items = cut_items(segments.data(), job.n_segments, kernel_.lanes, items.data());
  job.rows = rows;
  job.has_grads = !grads.tensors.empty();
  job.grads_by_row = grads.by_row;
  job.sleeps = semantics_ == Semantics::kDeferred;
  job.absent = job.sleeps ? Absent::kSleep : Absent::kStep;
  job.last_step = last_step_;
  job.step = plan.step();
  job.skip_non_finite = skip_non_finite_;
  return job;
}

std::int64_t Rows::run(const Job& job, ThreadPool& pool) const {
  std::int64_t row_bytes = 0;
  for (const Tensor& t : tensors_) row_bytes += kBytesPerValue * t.width;
  const std::int64_t grain =
      std::max<std::int64_t>(kPieceBytes / std::max<std::int64_t>(row_bytes, 1), 1);
  std::atomic<std::int64_t> bad_rows{0};
  pool.parallel_for(0, job.rows.size, grain, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t bad = kernel_.run(job, first, last);
    if (bad != 0) bad_rows.fetch_add(bad);
  });
  return bad_rows.load();
}

std::int64_t Rows::update(const StepPlan& plan, const Ids& rows, const Gradients& grads,
                          ThreadPool& pool) const {
  Job work = job(plan, rows, grads, nullptr);
  // A skipped row stands still where rows without a gradient do.
  if (semantics_ == Semantics::kSparse && work.has_grads) work.absent = Absent::kNothing;
  return run(work, pool);
}

void Rows::update_rest(const StepPlan& plan, ThreadPool& pool) const {
  constexpr std::int64_t kBlock = 256;
  const Job whole = job(plan, Ids{nullptr, nullptr, n_rows_}, {}, nullptr);
  pool.parallel_for(0, n_rows_, kBlock, [&](std::int64_t first, std::int64_t last) {
    std::int64_t rest[kBlock];
    std::int64_t n = 0;
    for (std::int64_t row = first; row < last; ++row)
      if (last_step_[row] < plan.step()) rest[n++] = row;
    if (n == 0) return;
    Job part = whole;
    part.rows = Ids{nullptr, rest, n};
    kernel_.run(part, 0, n);
  });
}

void Rows::flush(const StepPlan& plan, const Ids& rows, ThreadPool& pool) const {
  run(job(plan, rows, {}, nullptr), pool);
}

void Rows::lookahead(const StepPlan& plan, bool steps, const Ids& rows, const Ids& pending,
                     const Gradients& grads, const std::vector<Matrix>& out,
                     ThreadPool& pool) const {
  Job work = job(plan, rows, grads, &out);
  work.pending = pending;
  work.use_pending = true;
  if (semantics_ == Semantics::kSparse || (!steps && semantics_ == Semantics::kDense))
    work.absent = Absent::kNothing;
  run(work, pool);
}

}  // namespace gs::adam
