// SPDX-License-Identifier: Apache-2.0
// The row kernel: what becomes of each row of a piece of work, memory fetched some rows ahead.
#pragma once

#include "kernel_items.hpp"

namespace gs::adam {
namespace {

// Rows ahead of the one at work. A core has few lines on their way to its first-level cache and
// several times as many to its second: rows come there first.
constexpr std::int64_t kFarAhead = 24, kNearAhead = 4;
constexpr std::int64_t kNear = 2;
// Consecutive rows from which on the processor fetches them better by itself.
constexpr std::int64_t kLongRun = 8;

inline std::int64_t id_at(const Ids& ids, std::int64_t i) {
  if (ids.narrow != nullptr) return ids.narrow[i];
  if (ids.wide != nullptr) return ids.wide[i];
  return i;
}

/// First position in [0, ids.size) whose id is not below `row`.
inline std::int64_t position_of(const Ids& ids, std::int64_t row) {
  std::int64_t low = 0, high = ids.size;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (id_at(ids, middle) < row)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

template <class V>
struct Kernel : Items<V> {
  using typename Arithmetic<V>::Float;
  using typename Arithmetic<V>::Values;
  using typename Arithmetic<V>::StepVector;

  /// Fills `missed` for a sleep that ends at the segments' `sleep`; false when there was none.
  static bool look_up(const Job& job, const Sleep Segment::* sleep, Missed& missed) {
    const std::int32_t slept = (job.segments[0].*sleep).target - missed.since;
    if (slept <= 0) return false;
    for (std::int32_t k = 0; k < job.n_segments; ++k) {
      const Sleep& s = job.segments[k].*sleep;
      if (slept <= s.window) {
        missed.of[k] = s.recent + slept;
      } else {
        s.distant(s.series, missed.since, s.target, &missed.distant[k]);
        missed.of[k] = &missed.distant[k];
      }
    }
    return true;
  }

  static bool is_finite(const float* g, std::int64_t n) {
    Float bad = V::set(0.0f);
    std::int64_t i = 0;
    for (; i + V::kLanes <= n; i += V::kLanes) {
      const Float x = V::All::load(g + i);
      bad = V::add(bad, V::sub(x, x));
    }
    if (i < n) {
      const Float x = V::first(n - i).load(g + i);
      bad = V::add(bad, V::sub(x, x));
    }
    return !V::has_nan(bad);
  }

  static bool row_is_finite(const Job& job, std::int64_t at) {
    bool finite = true;
    for (std::int32_t k = 0; k < job.n_segments; ++k) {
      const Segment& s = job.segments[k];
      finite = finite && is_finite(s.grad + at * s.grad_stride, s.width);
    }
    return finite;
  }

  /// Where the gradient of position i, row `row`, lies; -1 when it has none. `next` walks through
  /// job.pending.
  static std::int64_t gradient_at(const Job& job, std::int64_t i, std::int64_t row,
                                  std::int64_t& next) {
    if (!job.has_grads) return -1;
    if (!job.use_pending) return job.grads_by_row ? row : i;
    while (next < job.pending.size && id_at(job.pending, next) < row) ++next;
    if (next == job.pending.size || id_at(job.pending, next) != row) return -1;
    return next;
  }

  // Not __builtin_prefetch: gcc takes a function that does nothing else for one without effects
  // and drops its calls.

  /// Into the first-level cache.
  static void fetch(const char* at) {
#if defined(__x86_64__)
    asm volatile("prefetcht0 %0" : : "m"(*at));
#elif defined(__aarch64__)
    asm volatile("prfm pldl1keep, %0" : : "Q"(*at));
#else
    (void)at;
#endif
  }

  /// Into the second-level cache.
  static void fetch_far(const char* at) {
#if defined(__x86_64__)
    asm volatile("prefetcht1 %0" : : "m"(*at));
#elif defined(__aarch64__)
    asm volatile("prfm pldl2keep, %0" : : "Q"(*at));
#else
    (void)at;
#endif
  }

  /// Everything of the row at position i. Gradients lie in order, but so far apart in time that the
  /// processor does not see it.
  template <class Fetch, class FetchToWrite>
  static void prefetch(const Job& job, std::int64_t i, const Fetch& fetch_line,
                       const FetchToWrite& fetch_to_write) {
    const Ahead& ahead = *job.ahead;
    const std::int64_t row = id_at(job.rows, i);
    for (std::int32_t k = 0; k < ahead.n_written; ++k)
      fetch_to_write(ahead.written[k].start + row * ahead.written[k].stride);
    for (std::int32_t k = 0; k < ahead.n_read; ++k)
      fetch_line(ahead.read[k].start + row * ahead.read[k].stride);
    for (std::int32_t k = 0; k < ahead.n_by_position; ++k)
      fetch_line(ahead.by_position[k].start + i * ahead.by_position[k].stride);
  }

  /// Rows so near to each other that the processor fetches them better by itself.
  static bool are_near(const Job& job, std::int64_t first, std::int64_t last) {
    return id_at(job.rows, last - 1) - id_at(job.rows, first) < kNear * (last - first);
  }

  /// Rows that all take one step and nothing else. They are due: only where rows sleep, or write
  /// elsewhere, may a job have some that this step has already updated.
  static bool is_uniform(const Job& job) {
    if (job.use_pending || job.sleeps || job.skip_non_finite || job.writes_elsewhere) return false;
    if (!job.has_grads && job.absent != Absent::kStep) return false;
    for (std::int32_t k = 0; k < job.n_items; ++k)
      if (job.items[k].grads_apart) return false;
    return true;
  }

  /// Where the run of consecutive rows ends that begins at a position, `last` at most. Ids are
  /// sorted and unique.
  static std::int64_t end_of_run(const Ids& ids, std::int64_t first, std::int64_t last) {
    if (ids.narrow == nullptr && ids.wide == nullptr) return last;
    const std::int64_t apart = id_at(ids, first) - first;
    std::int64_t inside = first, step = 1;
    while (inside + step < last && id_at(ids, inside + step) - (inside + step) == apart) {
      inside += step;
      step *= 2;
    }
    for (; step > 0; step /= 2)
      if (inside + step < last && id_at(ids, inside + step) - (inside + step) == apart)
        inside += step;
    return inside + 1;
  }

  /// An item's rows are not one long row, or not one whose vectors all have the same constants.
  static bool has_gaps(const Job& job, const Item& item) {
    const Segment& s = job.segments[item.segment];
    return (item.parts > 1 && item.columns != V::kLanes) || s.param_stride != item.columns ||
           s.exp_avg_stride != item.columns || s.exp_avg_sq_stride != item.columns ||
           (job.has_grads && s.grad_stride != item.columns);
  }

  /// Consecutive rows that all do the same: item by item, a step's constants in registers.
  static std::int64_t run_uniform(const Job& job, std::int64_t first, std::int64_t last) {
    const std::int64_t row = id_at(job.rows, first), n = last - first;
    const std::int64_t grad_row = job.grads_by_row ? row : first;
    std::int64_t bad_rows = 0;
    // Items of rows with gaps take turns so often that the processor sees memory read in order.
    std::int64_t block = 32;
    for (std::int32_t k = 0; k < job.n_items; ++k)
      if (has_gaps(job, job.items[k])) block = 2;
    for (std::int64_t begin = 0; begin < n; begin += block) {
      const std::int64_t end = begin + block < n ? begin + block : n;
      Float bad = V::set(0.0f);
      for (std::int32_t k = 0; k < job.n_items; ++k)
        run_uniform_item(job, job.items[k], row + begin, grad_row + begin, end - begin, bad);
      for (std::int64_t i = begin; V::has_nan(bad) && i < end; ++i)
        bad_rows += !row_is_finite(job, grad_row + i);
    }
    for (std::int64_t i = row; job.last_step != nullptr && i < row + n; ++i)
      job.last_step[i] = job.step;
    return bad_rows;
  }

  static void run_uniform_item(const Job& job, const Item& item, std::int64_t begin,
                               std::int64_t grad_begin, std::int64_t rows, Float& bad) {
    const Segment& s = job.segments[item.segment];
    const StepVector step(item);
    std::int64_t columns = item.columns;
    if (!has_gaps(job, item)) {
      columns *= rows;
      rows = 1;
    }
    float* w = s.param + begin * s.param_stride + item.offset;
    float* m = s.exp_avg + begin * s.exp_avg_stride + item.offset;
    float* v = s.exp_avg_sq + begin * s.exp_avg_sq_stride + item.offset;
    const float* grad = job.has_grads ? s.grad + grad_begin * s.grad_stride + item.offset : nullptr;
    const auto one = [&](std::int64_t i, auto lanes) {
      Values x{lanes.load(w + i), lanes.load(m + i), lanes.load(v + i)};
      const Float g = grad != nullptr ? lanes.load(grad + i) : V::set(0.0f);
      bad = V::add(bad, V::sub(g, g));
      step.take(g, x);
      lanes.store(w + i, x.w);
      lanes.store(m + i, x.m);
      lanes.store(v + i, x.v);
    };
    for (std::int64_t row = 0; row < rows; ++row) {
      std::int64_t i = 0;
      for (; i + V::kLanes <= columns; i += V::kLanes) one(i, typename V::All{});
      if (i < columns) one(i, V::first(columns - i));
      w += s.param_stride;
      m += s.exp_avg_stride;
      v += s.exp_avg_sq_stride;
      if (grad != nullptr) grad += s.grad_stride;
    }
  }

  template <bool kSleeps, bool kSteps>
  static void run_items(const Job& job, const Missed& missed, const RowWork& work, Float& bad) {
    for (std::int32_t k = 0; k < job.n_items; ++k)
      Items<V>::template run<kSleeps, kSteps>(job, job.items[k], missed, work, bad);
  }

  static std::int64_t run_each(const Job& job, std::int64_t first, std::int64_t last) {
    if (first == last) return 0;
    Missed missed;
    RowWork work;
    std::int64_t bad_rows = 0;
    std::int64_t next = job.use_pending ? position_of(job.pending, id_at(job.rows, first)) : 0;
    // Position from which on nothing is fetched ahead.
    const std::int64_t unfetched = are_near(job, first, last) ? first : last;
    for (std::int64_t i = first; i < unfetched && i < first + kFarAhead; ++i)
      prefetch(job, i, fetch_far, fetch_far);
    for (std::int64_t i = first; i < last; ++i) {
      if (i + kFarAhead < unfetched) prefetch(job, i + kFarAhead, fetch_far, fetch_far);
      if (i + kNearAhead < unfetched) prefetch(job, i + kNearAhead, fetch, V::fetch_to_write);
      Float bad = V::set(0.0f);
      work.row = id_at(job.rows, i);
      work.grad_row = gradient_at(job, i, work.row, next);
      work.out_row = i;
      if (job.skip_non_finite && work.grad_row >= 0 && !row_is_finite(job, work.grad_row)) {
        ++bad_rows;
        work.grad_row = -1;
      }
      missed.since = job.last_step != nullptr ? job.last_step[work.row] : job.step - 1;
      if (missed.since < 0) missed.since = 0;  // nobody's step: no table begins before 0
      // A row that this step has already updated has nothing to come but being read.
      const bool done = missed.since >= job.step;
      const bool steps = !done && (work.grad_row >= 0 || job.absent == Absent::kStep);
      work.sleep = steps ? &Segment::before : &Segment::after;
      const bool sleeps =
          (steps ? job.sleeps : job.absent == Absent::kSleep) && look_up(job, work.sleep, missed);
      if (sleeps && steps)
        run_items<true, true>(job, missed, work, bad);
      else if (sleeps)
        run_items<true, false>(job, missed, work, bad);
      else if (steps)
        run_items<false, true>(job, missed, work, bad);
      else if (job.writes_elsewhere)
        run_items<false, false>(job, missed, work, bad);
      bad_rows += V::has_nan(bad);
      if (job.last_step != nullptr && !job.writes_elsewhere && !done)
        job.last_step[work.row] = job.step;
    }
    if (job.writes_elsewhere) V::end_stores();
    return bad_rows;
  }

  static std::int64_t run_rows(const Job& job, std::int64_t first, std::int64_t last) {
    if (!is_uniform(job)) return run_each(job, first, last);
    std::int64_t bad_rows = 0;
    std::int64_t done = first;
    for (std::int64_t i = first; i < last;) {
      const std::int64_t end = end_of_run(job.rows, i, last);
      if (end - i >= kLongRun) {
        bad_rows += run_each(job, done, i) + run_uniform(job, i, end);
        done = end;
      }
      i = end;
    }
    return bad_rows + run_each(job, done, last);
  }
};

}  // namespace
}  // namespace gs::adam
