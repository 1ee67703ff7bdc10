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
    /// Another tensor's constants from a lane on.
    void change(const Step& s, int lane) {
      blend = V::blend(blend, V::set(s.blend), lane);
      beta2 = V::blend(beta2, V::set(s.beta2), lane);
      weight2 = V::blend(weight2, V::set(s.weight2), lane);
      inverse_root = V::blend(inverse_root, V::set(s.inverse_root), lane);
      eps = V::blend(eps, V::set(s.eps), lane);
      minus_rate = V::blend(minus_rate, V::set(-s.rate), lane);
      keep = V::blend(keep, V::set(s.keep), lane);
    }
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
    void change(const CatchUp& c, int lane) {
      total = V::blend(total, V::set(c.total), lane);
      eps = V::blend(eps, V::set(c.eps), lane);
      skew2 = V::blend(skew2, V::set(c.skew2), lane);
      skew3 = V::blend(skew3, V::set(c.skew3), lane);
      trust = V::blend(trust, V::set(c.trust), lane);
      decay1 = V::blend(decay1, V::set(c.decay1), lane);
      decay2 = V::blend(decay2, V::set(c.decay2), lane);
      keep = V::blend(keep, V::set(c.keep), lane);
    }
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

  /// One row on its way: what its tensors missed, and until when.
  struct Missed {
    const CatchUp* of[kMostSegments];
    CatchUp distant[kMostSegments];
    std::int32_t since;
  };

  /// Where an item's values lie. `grad` and `out` are of the first part alone.
  struct Span {
    float* w;
    float* m;
    float* v;
    const float* grad;
    float* out;
    std::int64_t n;
  };

  /// Lanes beyond the formula's trust are summed term by term.
  static Float replay(const Segment* segments, const Item& item, const Sleep Segment::* sleep,
                      std::int32_t since, unsigned lanes, const Values& x, Float moved) {
    alignas(64) float m_at[V::kLanes], v_at[V::kLanes], moved_at[V::kLanes];
    V::All::store(m_at, x.m);
    V::All::store(v_at, x.v);
    V::All::store(moved_at, moved);
    for (int lane = 0; lane < V::kLanes; ++lane) {
      if ((lanes >> lane & 1u) == 0) continue;
      int part = item.parts - 1;
      while (part > 0 && lane < item.lane[part]) --part;
      const Sleep& s = segments[item.segment + part].*sleep;
      moved_at[lane] = s.replay(s.series, since, s.target, m_at[lane], v_at[lane]);
    }
    return V::All::load(moved_at);
  }

  static void catch_up(const SleepVector& k, const Segment* segments, const Item& item,
                       const Sleep Segment::* sleep, std::int32_t since, Values& x) {
    const Float inverse = V::div(V::set(1.0f), V::add(V::sqrt(x.v), k.eps));
    const Float rho = V::mul(k.eps, inverse);
    const Float correction =
        V::fma(V::mul(rho, rho), V::sub(k.skew2, V::mul(k.skew3, rho)), V::set(1.0f));
    Float moved = V::mul(V::mul(V::mul(x.m, inverse), k.total), correction);
    const unsigned lanes = V::beyond(rho, k.trust, x.m);
    if (__builtin_expect(lanes != 0, 0))
      moved = replay(segments, item, sleep, since, lanes, x, moved);
    x.w = V::sub(V::mul(x.w, k.keep), moved);
    x.m = V::mul(x.m, k.decay1);
    x.v = V::mul(x.v, k.decay2);
  }

  /// One item of one row, or (without sleep) one tensor's run of rows without gaps.
  template <bool kSleeps, bool kSteps>
  struct Work {
    StepVector step;
    SleepVector missed;
    const Segment* segments;
    const Item* item;
    const Sleep Segment::* sleep;
    std::int32_t since;

    Work(const Segment* all, const Item& which, const Missed& row, const Sleep Segment::* until)
        : step(all[which.segment].step),
          missed(kSleeps ? *row.of[which.segment] : CatchUp{}),
          segments(all),
          item(&which),
          sleep(until),
          since(row.since) {}

    void change(int part, const Missed& row) {
      const int segment = item->segment + part;
      if (kSteps) step.change(segments[segment].step, item->lane[part]);
      if (kSleeps) missed.change(*row.of[segment], item->lane[part]);
    }

    Values at(Values x, Float g) const {
      if (kSleeps) catch_up(missed, segments, *item, sleep, since, x);
      if (kSteps) take_step(step, g, x);
      return x;
    }

    template <class Lanes>
    void run(const Span& s, std::int64_t i, Lanes lanes) const {
      Values x{lanes.load(s.w + i), lanes.load(s.m + i), lanes.load(s.v + i)};
      x = at(x, kSteps && s.grad != nullptr ? lanes.load(s.grad + i) : V::set(0.0f));
      if (s.out != nullptr) {
        lanes.store(s.out + i, x.w);
        return;
      }
      lanes.store(s.w + i, x.w);
      lanes.store(s.m + i, x.m);
      lanes.store(s.v + i, x.v);
    }

    void run(const Span& s) const {
      std::int64_t i = 0;
      for (; i + V::kLanes <= s.n; i += V::kLanes) run(s, i, typename V::All{});
      if (i < s.n) run(s, i, V::first(s.n - i));
    }
  };

  /// A vector of columns that several tensors share.
  template <bool kSleeps, bool kSteps, class Lanes>
  static void run_shared(const Job& job, const Item& item, const Missed& row,
                         const Sleep Segment::* sleep, const Span& s, std::int64_t grad_row,
                         std::int64_t out_row, Lanes lanes) {
    Work<kSleeps, kSteps> work(job.segments, item, row, sleep);
    Float g = V::set(0.0f);
    for (int part = 0; part < item.parts; ++part) {
      if (part > 0) work.change(part, row);
      if (!kSteps || s.grad == nullptr) continue;
      const Segment& segment = job.segments[item.segment + part];
      const float* grad = first_lane(segment.grad, grad_row * segment.grad_stride, item, part);
      g = V::blend(g, V::load_lanes(grad, item.lane[part], end_of(item, part)), item.lane[part]);
    }
    Values x{lanes.load(s.w), lanes.load(s.m), lanes.load(s.v)};
    x = work.at(x, g);
    if (s.out == nullptr) {
      lanes.store(s.w, x.w);
      lanes.store(s.m, x.m);
      lanes.store(s.v, x.v);
      return;
    }
    for (int part = 0; part < item.parts; ++part) {
      const Segment& segment = job.segments[item.segment + part];
      V::store_lanes(first_lane(segment.out, out_row * segment.out_stride, item, part),
                     item.lane[part], end_of(item, part), x.w);
    }
  }

  /// Where lane 0 would be if a part's columns reached that far.
  template <class T>
  static T* first_lane(T* tensor, std::int64_t row_start, const Item& item, int part) {
    const std::int64_t column = part == 0 ? item.offset : -item.lane[part];
    return tensor + row_start + column;
  }

  static int end_of(const Item& item, int part) {
    return part + 1 < item.parts ? item.lane[part + 1] : static_cast<int>(item.columns);
  }

  template <bool kSleeps, bool kSteps>
  static void run_item(const Job& job, const Item& item, const Missed& row,
                       const Sleep Segment::* sleep, std::int64_t id, std::int64_t grad_row,
                       std::int64_t out_row) {
    const Segment& segment = job.segments[item.segment];
    Span s;
    s.w = segment.param + id * segment.param_stride + item.offset;
    s.m = segment.exp_avg + id * segment.exp_avg_stride + item.offset;
    s.v = segment.exp_avg_sq + id * segment.exp_avg_sq_stride + item.offset;
    s.grad = grad_row >= 0 ? segment.grad + grad_row * segment.grad_stride + item.offset : nullptr;
    s.out =
        segment.out != nullptr ? segment.out + out_row * segment.out_stride + item.offset : nullptr;
    s.n = item.columns;
    if (item.parts == 1)
      Work<kSleeps, kSteps>(job.segments, item, row, sleep).run(s);
    else if (s.n == V::kLanes)
      run_shared<kSleeps, kSteps>(job, item, row, sleep, s, grad_row, out_row, typename V::All{});
    else
      run_shared<kSleeps, kSteps>(job, item, row, sleep, s, grad_row, out_row, V::first(s.n));
  }

  /// Fills `row` for a sleep that ends at the segments' `sleep`; false when there was none.
  static bool look_up(const Job& job, const Sleep Segment::* sleep, Missed& row) {
    const std::int32_t slept = (job.segments[0].*sleep).target - row.since;
    if (slept <= 0) return false;
    for (std::int32_t k = 0; k < job.n_segments; ++k) {
      const Sleep& s = job.segments[k].*sleep;
      if (slept <= s.window) {
        row.of[k] = s.recent + slept;
      } else {
        s.distant(s.series, row.since, s.target, &row.distant[k]);
        row.of[k] = &row.distant[k];
      }
    }
    return true;
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

  /// Not __builtin_prefetch: gcc takes a function that does nothing else for one without effects
  /// and drops its calls.
  static void fetch(const char* at) {
#if defined(__x86_64__)
    asm volatile("prefetcht0 %0" : : "m"(*at));
#elif defined(__aarch64__)
    asm volatile("prfm pldl1keep, %0" : : "Q"(*at));
#else
    (void)at;
#endif
  }

  static void prefetch_columns(const float* start, std::int64_t n) {
    constexpr std::uintptr_t kLineBytes = 64;
    const auto end = reinterpret_cast<std::uintptr_t>(start + n);
    for (auto at = reinterpret_cast<std::uintptr_t>(start) & ~(kLineBytes - 1); at < end;
         at += kLineBytes)
      fetch(reinterpret_cast<const char*>(at));
  }

  /// Everything of a row to come. Gradients lie in order, but so far apart in time that the
  /// processor does not see it.
  static void prefetch(const Job& job, std::int64_t i) {
    const std::int64_t row = id_at(job.rows, i);
    for (std::int32_t k = 0; k < job.n_items; ++k) {
      const Item& item = job.items[k];
      const Segment& s = job.segments[item.segment];
      prefetch_columns(s.param + row * s.param_stride + item.offset, item.columns);
      prefetch_columns(s.exp_avg + row * s.exp_avg_stride + item.offset, item.columns);
      prefetch_columns(s.exp_avg_sq + row * s.exp_avg_sq_stride + item.offset, item.columns);
    }
    if (!job.has_grads || job.use_pending) return;
    const std::int64_t at = job.grads_by_row ? row : i;
    for (std::int32_t k = 0; k < job.n_segments; ++k)
      prefetch_columns(job.segments[k].grad + at * job.segments[k].grad_stride,
                       job.segments[k].width);
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
    Missed awake;
    awake.since = job.step - 1;
    // Blocks small enough that counting bad gradients leaves them in the first-level cache.
    constexpr std::int64_t kBlock = 32;
    for (std::int64_t begin = first; begin < last; begin += kBlock) {
      const std::int64_t end = begin + kBlock < last ? begin + kBlock : last;
      bool finite = true;
      for (std::int32_t k = 0; k < job.n_segments; ++k) {
        const Segment& s = job.segments[k];
        const std::int64_t at = begin * s.width, n = (end - begin) * s.width;
        const float* g = job.has_grads ? s.grad + at : nullptr;
        const Item item{k, 1, 0, n, {}};
        Work<false, true>(job.segments, item, awake, nullptr)
            .run(Span{s.param + at, s.exp_avg + at, s.exp_avg_sq + at, g, nullptr, n});
        if (g != nullptr) finite = finite && is_finite(g, n);
      }
      for (std::int64_t row = begin; !finite && row < end; ++row)
        bad_rows += !row_is_finite(job, row);
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
    const bool writes_elsewhere = job.segments[0].out != nullptr;
    Missed missed;
    std::int64_t bad_rows = 0;
    std::int64_t next = job.use_pending ? position_of(job.pending, id_at(job.rows, first)) : 0;
    for (std::int64_t i = first; i < last && i < first + kPrefetchRows; ++i) prefetch(job, i);
    for (std::int64_t i = first; i < last; ++i) {
      if (i + kPrefetchRows < last) prefetch(job, i + kPrefetchRows);
      const std::int64_t row = id_at(job.rows, i);
      std::int64_t at = gradient_at(job, i, row, next);
      if (at >= 0 && !row_is_finite(job, at)) {
        ++bad_rows;
        if (job.skip_non_finite) at = -1;
      }
      missed.since = job.last_step != nullptr ? job.last_step[row] : job.step - 1;
      // A row that this step has already updated has nothing to come but being read.
      const bool done = missed.since >= job.step;
      const bool steps = !done && (at >= 0 || job.absent == Absent::kStep);
      const Sleep Segment::* sleep = steps ? &Segment::before : &Segment::after;
      const bool sleeps =
          (steps ? job.sleeps : job.absent == Absent::kSleep) && look_up(job, sleep, missed);
      for (std::int32_t k = 0; k < job.n_items; ++k) {
        if (sleeps && steps)
          run_item<true, true>(job, job.items[k], missed, sleep, row, at, i);
        else if (sleeps)
          run_item<true, false>(job, job.items[k], missed, sleep, row, at, i);
        else if (steps)
          run_item<false, true>(job, job.items[k], missed, sleep, row, at, i);
        else if (writes_elsewhere)
          run_item<false, false>(job, job.items[k], missed, sleep, row, at, i);
      }
      if (job.last_step != nullptr && !writes_elsewhere && !done) job.last_step[row] = job.step;
    }
    return bad_rows;
  }
};

}  // namespace
}  // namespace gs::adam
