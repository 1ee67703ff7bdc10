// SPDX-License-Identifier: Apache-2.0
// One item of one row: its values through a sleep, a step or both, back to where they lie or
// elsewhere.
#pragma once

#include "kernel_math.hpp"

namespace gs::adam {
namespace {

/// What becomes of one row.
struct RowWork {
  std::int64_t row;
  std::int64_t grad_row;  // -1: no gradient
  std::int64_t out_row;
  const Sleep Segment::* sleep;  // until when, where the row sleeps
};

template <class V>
struct Items : Arithmetic<V> {
  using typename Arithmetic<V>::Float;
  using typename Arithmetic<V>::Values;
  using typename Arithmetic<V>::StepVector;
  using typename Arithmetic<V>::SleepVector;

  /// Where a row's values lie. `out` null: they are written back.
  struct Span {
    float* w;
    float* m;
    float* v;
    float* out;
  };

  /// Not inlined: for the few values that need it.
  __attribute__((noinline)) static Float replay(const Job& job, const Item& item,
                                                const Sleep Segment::* sleep, std::int32_t since,
                                                unsigned lanes, const Values& x, Float moved) {
    alignas(64) float m_at[V::kLanes], v_at[V::kLanes], moved_at[V::kLanes];
    V::All::store(m_at, x.m);
    V::All::store(v_at, x.v);
    V::All::store(moved_at, moved);
    for (int lane = 0; lane < V::kLanes; ++lane) {
      if ((lanes >> lane & 1u) == 0) continue;
      int part = item.parts - 1;
      while (part > 0 && lane < item.lane[part]) --part;
      const Sleep& s = job.segments[item.segment + part].*sleep;
      moved_at[lane] = s.replay(s.series, since, s.target, m_at[lane], v_at[lane]);
    }
    return V::All::load(moved_at);
  }

  /// Gradients' lanes of an item that several tensors share.
  static Float gather_gradient(const Job& job, const Item& item, std::int64_t grad_row) {
    Float g = V::set(0.0f);
    for (int part = 0; part < item.parts; ++part) {
      const Segment& s = job.segments[item.segment + part];
      const float* start = first_lane(s.grad, grad_row * s.grad_stride, item, part);
      g = V::merge_lanes(g, start, item.lane[part], end_of(item, part));
    }
    return g;
  }

  static void spread_out(const Job& job, const Item& item, std::int64_t out_row, Float w) {
    for (int part = 0; part < item.parts; ++part) {
      const Segment& s = job.segments[item.segment + part];
      V::store_lanes(first_lane(s.out, out_row * s.out_stride, item, part), item.lane[part],
                     end_of(item, part), w);
    }
  }

  /// Where lane 0 would be if a part's columns reached that far.
  template <class T>
  static T* first_lane(T* tensor, std::int64_t row_start, const Item& item, int part) {
    return tensor + row_start + (part == 0 ? item.offset : -item.lane[part]);
  }

  static int end_of(const Item& item, int part) {
    return part + 1 < item.parts ? item.lane[part + 1] : static_cast<int>(item.columns);
  }

  /// `bad` turns NaN where a gradient is NaN or Inf.
  template <bool kSleeps, bool kSteps>
  static void run(const Job& job, const Item& item, const Missed& missed, const RowWork& work,
                  Float& bad) {
    const Segment& s = job.segments[item.segment];
    const Span at{s.param + work.row * s.param_stride + item.offset,
                  s.exp_avg + work.row * s.exp_avg_stride + item.offset,
                  s.exp_avg_sq + work.row * s.exp_avg_sq_stride + item.offset,
                  s.out != nullptr && !item.outs_apart
                      ? s.out + work.out_row * s.out_stride + item.offset
                      : nullptr};
    const bool has_gradient = kSteps && work.grad_row >= 0;
    const float* grad = has_gradient && !item.grads_apart
                            ? s.grad + work.grad_row * s.grad_stride + item.offset
                            : nullptr;
    const StepVector step(item);
    const auto sleep = [&] {
      if constexpr (kSleeps)
        return SleepVector(item, missed);
      else
        return 0;
    }();
    const auto one = [&](std::int64_t i, auto lanes) {
      Values x{lanes.load(at.w + i), lanes.load(at.m + i), lanes.load(at.v + i)};
      if constexpr (kSleeps)
        sleep.end(x, [&](unsigned beyond, const Values& values, Float moved) {
          return replay(job, item, work.sleep, missed.since, beyond, values, moved);
        });
      if constexpr (kSteps) {
        Float g = V::set(0.0f);
        if (grad != nullptr)
          g = lanes.load(grad + i);
        else if (has_gradient)
          g = gather_gradient(job, item, work.grad_row);
        bad = V::add(bad, V::sub(g, g));
        step.take(g, x);
      }
      if (at.out != nullptr) {
        lanes.store_elsewhere(at.out + i, x.w);
      } else if (item.outs_apart) {
        spread_out(job, item, work.out_row, x.w);
      } else {
        lanes.store(at.w + i, x.w);
        lanes.store(at.m + i, x.m);
        lanes.store(at.v + i, x.v);
      }
    };
    std::int64_t i = 0;
    for (; i + V::kLanes <= item.columns; i += V::kLanes) one(i, typename V::All{});
    if (i < item.columns) one(i, V::first(item.columns - i));
  }
};

}  // namespace
}  // namespace gs::adam
