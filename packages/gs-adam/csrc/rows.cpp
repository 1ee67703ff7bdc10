// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"

#include <algorithm>
#include <array>
#include <atomic>

#include "crew.hpp"
#include "gs/error.hpp"
#include "layout.hpp"

namespace gs::adam {
namespace {

// A piece of work for one thread: about a second-level cache, so that pieces balance.
constexpr std::int64_t kPieceBytes = 1 << 18;
constexpr std::int64_t kBytesPerValue = 28;
constexpr std::int64_t kCheckGrain = 1 << 10;
constexpr std::int64_t kCallersGrain = 1 << 18;

std::int64_t id_at(const Ids& ids, std::int64_t i) {
  if (ids.narrow != nullptr) return ids.narrow[i];
  return ids.wide != nullptr ? ids.wide[i] : i;
}

bool has_ids(const Ids& ids) { return ids.narrow != nullptr || ids.wide != nullptr; }

constexpr Ids kNoIds{nullptr, nullptr, 0};

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

// A call's tensors. One thread's calls reuse it, so that a step allocates nothing.
struct Scratch {
  std::array<Segment, kMostSegments> segments;
  std::array<Item, 2 * kMostSegments> items;
  Ahead ahead;
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

void check_ids(const Ids& ids, std::int64_t n_rows, const char* name) {
  if (!has_ids(ids)) return;
  throw_wrong_ids(ids, n_rows, name, first_not_increasing(ids, 0, ids.size));
}

void check_ids(const Ids& ids, std::int64_t n_rows, const char* name, ThreadPool& pool) {
  if (!has_ids(ids)) return;
  std::atomic<std::int64_t> wrong{-1};
  pool.parallel_for(0, ids.size, kCallersGrain, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t at = first_not_increasing(ids, first, last);
    if (at >= 0) wrong.store(at, std::memory_order_relaxed);
  });
  throw_wrong_ids(ids, n_rows, name, wrong.load());
}

/// What is wrong with a call's rows, found by several threads, said by one.
class Rows::Checks {
 public:
  Checks(const Rows& rows, const StepPlan& plan, const Ids& ids, const Ids& pending)
      : rows_(rows),
        ids_(ids),
        pending_(pending),
        since_(rows.semantics_ == Semantics::kDeferred ? plan.known_since() : 0) {}

  /// Ids in order and in range; positions of `pending` take their share.
  bool are_ids(std::int64_t first, std::int64_t last) {
    if (has_ids(pending_)) {
      const std::int64_t at = first_not_increasing(pending_, pending_.size * first / ids_.size,
                                                   pending_.size * last / ids_.size);
      if (at >= 0) return fail(&wrong_pending_, at);
      if (!are_ends_in_range(pending_)) return false;
    }
    if (!has_ids(ids_)) return true;
    const std::int64_t at = first_not_increasing(ids_, first, last);
    if (at >= 0) return fail(&wrong_, at);
    return id_at(ids_, first) >= 0 && id_at(ids_, last - 1) < rows_.n_rows_;
  }

  /// Rows that have not slept since before rates are known.
  bool are_known(std::int64_t first, std::int64_t last) {
    if (since_ == 0) return true;
    const std::int32_t* const last_step = rows_.last_step_;
    for (std::int64_t i = first; i < last; ++i) {
      if (i + kFetchAhead < last) __builtin_prefetch(last_step + id_at(ids_, i + kFetchAhead));
      if (last_step[id_at(ids_, i)] < since_) return fail(&unknown_, id_at(ids_, i));
    }
    return true;
  }

  /// Rows whose turn this step is.
  bool are_due(std::int64_t first, std::int64_t last, std::int32_t step, std::int32_t floor) {
    const bool dense = rows_.semantics_ == Semantics::kDense;
    const std::int32_t* const last_step = rows_.last_step_;
    for (std::int64_t i = first; i < last; ++i) {
      if (i + kFetchAhead < last) __builtin_prefetch(last_step + id_at(ids_, i + kFetchAhead));
      const std::int32_t done = std::max(floor, last_step[id_at(ids_, i)]);
      if (done >= step || (dense && done != step - 1)) return fail(&out_of_turn_, id_at(ids_, i));
    }
    return true;
  }

  /// Rows whose values after this step can still be told: it is their turn, or their last one.
  bool are_readable(std::int64_t first, std::int64_t last, std::int32_t step, std::int32_t floor) {
    const bool dense = rows_.semantics_ == Semantics::kDense;
    for (std::int64_t i = first; i < last; ++i) {
      const std::int32_t done = std::max(floor, rows_.last_step_[id_at(ids_, i)]);
      if (done > step || (dense && done < step - 1)) return fail(&unreadable_, id_at(ids_, i));
    }
    return true;
  }

  void throw_unreadable(std::int32_t step, std::int32_t floor) const {
    const std::int64_t row = unreadable_.load();
    if (row < 0) return;
    const std::int32_t done = std::max(floor, rows_.last_step_[row]);
    GS_CHECK(done <= step, "rows must be looked ahead at before later steps update them, got row ",
             row, " in step ", step, " after its update in step ", done);
    GS_CHECK(false, "rows must be looked ahead at after the steps before, got row ", row,
             " in step ", step, " before its update in step ", step - 1);
  }

  void throw_found(std::int32_t step, std::int32_t floor) const {
    if (has_ids(ids_)) throw_wrong_ids(ids_, rows_.n_rows_, "rows", wrong_.load());
    if (has_ids(pending_))
      throw_wrong_ids(pending_, rows_.n_rows_, "pending ids", wrong_pending_.load());
    const std::int64_t unknown = unknown_.load();
    GS_CHECK(unknown < 0, "last_step must be at least ", since_,
             ", the step since which rates are known, got ", rows_.last_step_[unknown], " of row ",
             unknown);
    const std::int64_t row = out_of_turn_.load();
    if (row < 0) return;
    const std::int32_t done = std::max(floor, rows_.last_step_[row]);
    GS_CHECK(done < step, "rows must be updated once a step, got row ", row, " in step ", step,
             " after its update in step ", done);
    GS_CHECK(false, "rows must be updated in the order of steps, got row ", row, " in step ", step,
             " before its update in step ", step - 1);
  }

 private:
  bool are_ends_in_range(const Ids& ids) const {
    return ids.size == 0 || (id_at(ids, 0) >= 0 && id_at(ids, ids.size - 1) < rows_.n_rows_);
  }

  static constexpr std::int64_t kFetchAhead = 32;

  static bool fail(std::atomic<std::int64_t>* what, std::int64_t where) {
    what->store(where);
    return false;
  }

  const Rows& rows_;
  const Ids& ids_;
  const Ids& pending_;
  const std::int32_t since_;
  std::atomic<std::int64_t> wrong_{-1}, wrong_pending_{-1}, unknown_{-1}, out_of_turn_{-1},
      unreadable_{-1};
};

// Tensors without columns have no memory, at no address: of spherical harmonics of degree 0. One
// is kept where there are no others, for the steps of its rows.
std::vector<std::size_t> Rows::with_columns(const std::vector<Tensor>& tensors) {
  std::vector<std::size_t> kept;
  for (std::size_t k = 0; k < tensors.size(); ++k)
    if (tensors[k].width > 0) kept.push_back(k);
  return kept.empty() ? std::vector<std::size_t>{0} : kept;
}

Job Rows::job(const StepPlan& plan, const Ids& rows, const Gradients& grads,
              const std::vector<Matrix>* out) const {
  auto& [segments, items, ahead] = scratch();
  Segment* next = segments.data();
  for (const std::size_t k : segments_) {
    const Tensor& t = tensors_[k];
    Segment& s = *next++;
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
  job.n_segments = static_cast<std::int32_t>(segments_.size());
  job.n_items = cut_items(segments.data(), job.n_segments, kernel_.lanes, items.data());
  job.rows = rows;
  job.ahead = &ahead;
  job.has_grads = !grads.tensors.empty();
  job.grads_by_row = grads.by_row;
  job.writes_elsewhere = out != nullptr;
  job.sleeps = semantics_ == Semantics::kDeferred;
  job.absent = job.sleeps ? Absent::kSleep : Absent::kStep;
  job.last_step = last_step_;
  job.step = plan.step();
  job.skip_non_finite = skip_non_finite_;
  return job;
}

template <class Check>
std::int64_t Rows::run(Job& job, ThreadPool& pool, const Check& check) const {
  // Of this thread's scratch: what else a call needs to know of its rows.
  list_lines(job, &scratch().ahead);
  std::int64_t row_bytes = 1;
  for (const Tensor& t : tensors_) row_bytes += kBytesPerValue * t.width;
  const std::int64_t grain = std::max<std::int64_t>(kPieceBytes / row_bytes, 1);
  std::atomic<std::int64_t> bad_rows{0};
  check_then_work(pool, job.rows.size, kCheckGrain, grain, check,
                  [&](std::int64_t first, std::int64_t last) {
                    const std::int64_t bad = kernel_.run(job, first, last);
                    if (bad != 0) bad_rows.fetch_add(bad, std::memory_order_relaxed);
                  });
  return bad_rows.load();
}

std::int64_t Rows::update(const StepPlan& plan, const Ids& rows, const Gradients& grads,
                          std::int32_t floor, ThreadPool& pool) const {
  GS_CHECK(plan.is_known(), "schedule must have begun a step since it was made or restored, got ",
           plan.step(), " steps that ended before");
  Job work = job(plan, rows, grads, nullptr);
  // A skipped row stands still where rows without a gradient do.
  if (semantics_ == Semantics::kSparse && work.has_grads) work.absent = Absent::kNothing;
  Checks checks(*this, plan, rows, kNoIds);
  const std::int64_t bad_rows = run(work, pool, [&](std::int64_t first, std::int64_t last) {
    return checks.are_ids(first, last) && checks.are_known(first, last) &&
           (last_step_ == nullptr || checks.are_due(first, last, plan.step(), floor));
  });
  checks.throw_found(plan.step(), floor);
  plan.count_updated(work.rows.size);
  return bad_rows;
}

void Rows::update_rest(const StepPlan& plan, ThreadPool& pool) const {
  // Others may have the pool for long, which nobody need wait for to find nothing.
  if (plan.updated() == n_rows_) return;
  // Mostly few rows are left, so that looking for them is what costs.
  constexpr std::int64_t kBlock = 256, kGrain = 1 << 12;
  Job whole = job(plan, Ids{nullptr, nullptr, n_rows_}, {}, nullptr);
  list_lines(whole, &scratch().ahead);
  const auto nothing = [](std::int64_t, std::int64_t) { return true; };
  const auto update_block = [&](std::int64_t first, std::int64_t last) {
    std::int64_t rest[kBlock];
    std::int64_t n = 0;
    for (std::int64_t row = first; row < last; ++row)
      if (last_step_[row] < plan.step()) rest[n++] = row;
    if (n == 0) return;
    Job part = whole;
    part.rows = Ids{nullptr, rest, n};
    kernel_.run(part, 0, n);
  };
  check_then_work(pool, n_rows_, n_rows_, kGrain, nothing,
                  [&](std::int64_t first, std::int64_t last) {
                    for (; first < last; first += kBlock)
                      update_block(first, std::min(first + kBlock, last));
                  });
}

void Rows::flush(const StepPlan& plan, const Ids& rows, ThreadPool& pool) const {
  if (semantics_ != Semantics::kDeferred) return check_ids(rows, n_rows_, "rows");
  Job work = job(plan, rows, {}, nullptr);
  Checks checks(*this, plan, rows, kNoIds);
  run(work, pool, [&](std::int64_t first, std::int64_t last) {
    return checks.are_ids(first, last) && checks.are_known(first, last);
  });
  checks.throw_found(0, 0);
}

void Rows::wake(const StepPlan& plan, const Ids& rows, ThreadPool& pool) const {
  Job work = job(plan, rows, {}, nullptr);
  // A flush that ends one step earlier.
  for (std::size_t i = 0; i < segments_.size(); ++i)
    scratch().segments[i].after = plan.before(tensors_[segments_[i]].group);
  work.step = plan.step() - 1;
  Checks checks(*this, plan, rows, kNoIds);
  run(work, pool, [&](std::int64_t first, std::int64_t last) {
    return checks.are_ids(first, last) && checks.are_known(first, last);
  });
  checks.throw_found(0, 0);
}

void Rows::lookahead(const StepPlan& plan, bool steps, const Ids& rows, const Ids& pending,
                     const Gradients& grads, const std::vector<Matrix>& out, std::int32_t floor,
                     ThreadPool& pool) const {
  // Where there are no rows nothing else would look at them.
  if (rows.size == 0) return check_ids(pending, n_rows_, "pending ids");
  Job work = job(plan, rows, grads, &out);
  work.pending = pending;
  work.use_pending = true;
  if (semantics_ == Semantics::kSparse || (!steps && semantics_ == Semantics::kDense))
    work.absent = Absent::kNothing;
  Checks checks(*this, plan, rows, pending);
  const bool has_turns = steps && last_step_ != nullptr;
  run(work, pool, [&](std::int64_t first, std::int64_t last) {
    return checks.are_ids(first, last) && checks.are_known(first, last) &&
           (!has_turns || checks.are_readable(first, last, plan.step(), floor));
  });
  checks.throw_found(0, 0);
  if (has_turns) checks.throw_unreadable(plan.step(), floor);
}

}  // namespace gs::adam
