// SPDX-License-Identifier: Apache-2.0
// The row kernel, written once over a vector type V of the including file. V lives in that file's
// anonymous namespace, so that every instance stays inside its file.
//
// Every value goes through the same operations whatever its lane, chunk or thread: one instruction
// set gives the same bits however the rows are divided.
#pragma once

#include "kernel.hpp"

namespace gs::adam {
namespace {

constexpr std::int64_t kPrefetchRows = 8;
constexpr std::int64_t kLine = 16;  // floats of a cache line

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
struct Kernel {
  using Float = typename V::Float;

  struct StepVector {
    Float blend, beta2, weight2, inverse_root, eps, minus_rate, keep;
    bool from_gradient;
    explicit StepVector(const Step& s)
        : blend(V::set(s.blend)),
          beta2(V::set(s.beta2)),
          weight2(V::set(s.weight2)),
          inverse_root(V::set(s.inverse_root)),
          eps(V::set(s.eps)),
          minus_rate(V::set(-s.rate)),
          keep(V::set(s.keep)),
          from_gradient(s.from_gradient) {}
  };

  struct SleepVector {
    Float total, eps, skew2, skew3, trust, decay1, decay2, keep;
    explicit SleepVector(const CatchUp& c)
        : total(V::set(c.total)),
          eps(V::set(c.eps)),
          skew2(V::set(c.skew2)),
          skew3(V::set(c.skew3)),
          trust(V::set(c.trust)),
          decay1(V::set(c.decay1)),
          decay2(V::set(c.decay2)),
          keep(V::set(c.keep)) {}
  };

  struct Values {
    Float w, m, v;
  };

  static void take_step(const StepVector& k, Float g, Values& x) {
    x.m = V::fma(k.blend, V::sub(g, x.m), k.from_gradient ? g : x.m);
    x.v = V::fma(k.beta2, x.v, V::mul(V::mul(k.weight2, g), g));
    const Float denominator = V::fma(V::sqrt(x.v), k.inverse_root, k.eps);
    x.w = V::fma(k.minus_rate, V::div(x.m, denominator), V::mul(x.w, k.keep));
  }

  /// Lanes beyond the formula's trust are summed one by one.
  static Float replay(const Sleep& sleep, std::int32_t since, unsigned lanes, Float m, Float v,
                      Float moved) {
    alignas(64) float m_at[V::kLanes], v_at[V::kLanes], moved_at[V::kLanes];
    V::All::store(m_at, m);
    V::All::store(v_at, v);
    V::All::store(moved_at, moved);
    for (int lane = 0; lane < V::kLanes; ++lane)
      if ((lanes >> lane & 1u) != 0)
        moved_at[lane] = sleep.replay(sleep.series, since, sleep.target, m_at[lane], v_at[lane]);
    return V::All::load(moved_at);
  }

  static void catch_up(const SleepVector& k, const Sleep& sleep, std::int32_t since, Values& x) {
    const Float inverse = V::div(V::set(1.0f), V::add(V::sqrt(x.v), k.eps));
    const Float rho = V::mul(k.eps, inverse);
    const Float correction =
        V::fma(V::mul(rho, rho), V::sub(k.skew2, V::mul(k.skew3, rho)), V::set(1.0f));
    Float moved = V::mul(V::mul(V::mul(x.m, inverse), k.total), correction);
    const unsigned lanes = V::beyond(rho, k.trust, x.m);
    if (__builtin_expect(lanes != 0, 0)) moved = replay(sleep, since, lanes, x.m, x.v, moved);
    x.w = V::sub(V::mul(x.w, k.keep), moved);
    x.m = V::mul(x.m, k.decay1);
    x.v = V::mul(x.v, k.decay2);
  }

  /// One row's part in one tensor, or a run of rows that lie without gaps.
  struct Span {
    float* w;
    float* m;
    float* v;
    const float* g;
    float* out;
    std::int64_t n;
  };

  template <bool kSleep, bool kStep, class Lanes>
  static void at(const Span& s, std::int64_t i, Lanes lanes, const StepVector& step,
                 const SleepVector& sleep_vector, const Sleep& sleep, std::int32_t since) {
    Values x{lanes.load(s.w + i), lanes.load(s.m + i), lanes.load(s.v + i)};
    if (kSleep) catch_up(sleep_vector, sleep, since, x);
    if (kStep) take_step(step, s.g != nullptr ? lanes.load(s.g + i) : V::set(0.0f), x);
    if (s.out != nullptr) {
      lanes.store(s.out + i, x.w);
      return;
    }
    lanes.store(s.w + i, x.w);
    lanes.store(s.m + i, x.m);
    lanes.store(s.v + i, x.v);
  }

  template <bool kSleep, bool kStep>
  static void run_span(const Span& s, const Step& step, const CatchUp& missed, const Sleep& sleep,
                       std::int32_t since) {
    const StepVector step_vector(step);
    const SleepVector sleep_vector(missed);
    std::int64_t i = 0;
    for (; i + V::kLanes <= s.n; i += V::kLanes)
      at<kSleep, kStep>(s, i, typename V::All{}, step_vector, sleep_vector, sleep, since);
    if (i < s.n) at<kSleep, kStep>(s, i, V::first(s.n - i), step_vector, sleep_vector, sleep, since);
  }

  static void run(const Span& s, const Segment& segment, bool step, const Sleep* sleep,
                  std::int32_t since) {
    CatchUp missed{};
    if (sleep != nullptr) {
      const std::int32_t slept = sleep->target - since;
      if (slept <= 0)
        sleep = nullptr;
      else if (slept <= sleep->window)
        missed = sleep->recent[slept];
      else
        sleep->distant(sleep->series, since, sleep->target, &missed);
    }
    if (sleep != nullptr && step)
      run_span<true, true>(s, segment.step, missed, *sleep, since);
    else if (sleep != nullptr)
      run_span<true, false>(s, segment.step, missed, *sleep, since);
    else if (step)
      run_span<false, true>(s, segment.step, missed, segment.before, since);
    else if (s.out != nullptr)
      run_span<false, false>(s, segment.step, missed, segment.before, since);
  }

  static bool is_finite(const float* g, std::int64_t n) {
    unsigned bad = 0;
    std::int64_t i = 0;
    for (; i + V::kLanes <= n; i += V::kLanes) bad |= V::non_finite(V::All::load(g + i));
    if (i < n) bad |= V::non_finite(V::first(n - i).load(g + i));
    return bad == 0;
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

  static void prefetch(const Job& job, std::int64_t row) {
    for (std::int32_t k = 0; k < job.n_segments; ++k) {
      const Segment& segment = job.segments[k];
      const float* const starts[3] = {segment.param + row * segment.param_stride,
                                      segment.exp_avg + row * segment.exp_avg_stride,
                                      segment.exp_avg_sq + row * segment.exp_avg_sq_stride};
      for (const float* start : starts) {
        for (std::int64_t i = 0; i < segment.width; i += kLine) __builtin_prefetch(start + i, 1);
        __builtin_prefetch(start + segment.width - 1, 1);
      }
    }
  }

  /// Rows without ids in tensors without gaps, all doing the same: one span per tensor.
  static bool is_flat(const Job& job) {
    if (job.rows.narrow != nullptr || job.rows.wide != nullptr || job.use_pending) return false;
    if (job.last_step != nullptr || job.skip_non_finite) return false;
    if (!job.has_grads && job.absent != Absent::kStep) return false;
    for (std::int32_t k = 0; k < job.n_segments; ++k) {
      const Segment& s = job.segments[k];
      if (s.param_stride != s.width || s.exp_avg_stride != s.width ||
          s.exp_avg_sq_stride != s.width || s.out != nullptr ||
          (s.grad != nullptr && s.grad_stride != s.width))
        return false;
    }
    return true;
  }

  static std::int64_t run_flat(const Job& job, std::int64_t first, std::int64_t last) {
    std::int64_t bad_rows = 0;
    // Blocks small enough that counting bad gradients leaves them in the first-level cache.
    constexpr std::int64_t kBlock = 32;
    for (std::int64_t begin = first; begin < last; begin += kBlock) {
      const std::int64_t end = begin + kBlock < last ? begin + kBlock : last;
      bool finite = true;
      for (std::int32_t k = 0; k < job.n_segments; ++k) {
        const Segment& s = job.segments[k];
        const std::int64_t at = begin * s.width, n = (end - begin) * s.width;
        const float* g = job.has_grads ? s.grad + at : nullptr;
        run(Span{s.param + at, s.exp_avg + at, s.exp_avg_sq + at, g, nullptr, n}, s, true, nullptr,
            0);
        if (g != nullptr) finite = finite && is_finite(g, n);
      }
      for (std::int64_t row = begin; !finite && row < end; ++row) bad_rows += !row_is_finite(job, row);
    }
    return bad_rows;
  }

  static bool row_is_finite(const Job& job, std::int64_t at) {
    bool finite = true;
    for (std::int32_t k = 0; k < job.n_segments; ++k) {
      const Segment& s = job.segments[k];
      finite = finite && is_finite(s.grad + at * s.grad_stride, s.width);
    }
    return finite;
  }

  static std::int64_t run_rows(const Job& job, std::int64_t first, std::int64_t last) {
    if (is_flat(job)) return run_flat(job, first, last);
    std::int64_t bad_rows = 0;
    std::int64_t next = job.use_pending ? position_of(job.pending, id_at(job.rows, first)) : 0;
    for (std::int64_t i = first; i < last && i < first + kPrefetchRows; ++i)
      prefetch(job, id_at(job.rows, i));
    for (std::int64_t i = first; i < last; ++i) {
      if (i + kPrefetchRows < last) prefetch(job, id_at(job.rows, i + kPrefetchRows));
      const std::int64_t row = id_at(job.rows, i);
      std::int64_t at = gradient_at(job, i, row, next);
      if (at >= 0 && !row_is_finite(job, at)) {
        ++bad_rows;
        if (job.skip_non_finite) at = -1;
      }
      const std::int32_t since = job.last_step != nullptr ? job.last_step[row] : job.step - 1;
      const bool writes_elsewhere = job.segments[0].out != nullptr;
      // A row that this step has already updated has nothing to come but being read.
      const bool done = since >= job.step;
      const bool steps = !done && (at >= 0 || job.absent == Absent::kStep);
      if (!steps && !writes_elsewhere && job.absent == Absent::kNothing) continue;
      for (std::int32_t k = 0; k < job.n_segments; ++k) {
        const Segment& s = job.segments[k];
        const Sleep* sleep = nullptr;
        if (steps && job.sleeps) sleep = &s.before;
        if (!steps && job.absent == Absent::kSleep) sleep = &s.after;
        run(Span{s.param + row * s.param_stride, s.exp_avg + row * s.exp_avg_stride,
                 s.exp_avg_sq + row * s.exp_avg_sq_stride,
                 at >= 0 ? s.grad + at * s.grad_stride : nullptr,
                 s.out != nullptr ? s.out + i * s.out_stride : nullptr, s.width},
            s, steps, sleep, since);
      }
      if (job.last_step != nullptr && !writes_elsewhere && !done) job.last_step[row] = job.step;
    }
    return bad_rows;
  }
};

}  // namespace
}  // namespace gs::adam
