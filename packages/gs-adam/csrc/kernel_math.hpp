// SPDX-License-Identifier: Apache-2.0
// The arithmetic of one vector of values, written once over a vector type V of the including file:
// an optimizer step, and what a sleeping row has missed. V lives in that file's anonymous
// namespace, so that every instance stays inside its file.
//
// Every value goes through the same operations whatever its lane, chunk or thread: one instruction
// set gives the same bits however the rows are divided.
#pragma once

#include "kernel.hpp"

namespace gs::adam {
namespace {

/// One row on its way: what its tensors missed, and until when.
struct Missed {
  const CatchUp* of[kMostSegments];
  CatchUp distant[kMostSegments];
  std::int32_t since;
};

template <class V>
struct Arithmetic {
  using Float = typename V::Float;

  struct Values {
    Float w, m, v;
  };

  struct StepVector {
    Float blend, beta2, weight2, inverse_root, eps, minus_rate, keep;
    bool from_gradient;
    explicit StepVector(const Item& item)
        : blend(V::All::load(item.step.blend)),
          beta2(V::All::load(item.step.beta2)),
          weight2(V::All::load(item.step.weight2)),
          inverse_root(V::All::load(item.step.inverse_root)),
          eps(V::All::load(item.step.eps)),
          minus_rate(V::All::load(item.step.minus_rate)),
          keep(V::All::load(item.step.keep)),
          from_gradient(item.from_gradient) {}

    void take(Float g, Values& x) const {
      x.m = V::fma(blend, V::sub(g, x.m), from_gradient ? g : x.m);
      x.v = V::fma(beta2, x.v, V::mul(V::mul(weight2, g), g));
      const Float denominator = V::fma(V::sqrt(x.v), inverse_root, eps);
      x.w = V::fma(minus_rate, V::div(x.m, denominator), V::mul(x.w, keep));
    }
  };

  struct SleepVector {
    Float total, eps, skew2, skew3, trust, decay1, decay2, keep;
    SleepVector(const Item& item, const Missed& row) {
      const CatchUp& first = *row.of[item.segment];
      total = V::set(first.total);
      eps = V::set(first.eps);
      skew2 = V::set(first.skew2);
      skew3 = V::set(first.skew3);
      trust = V::set(first.trust);
      decay1 = V::set(first.decay1);
      decay2 = V::set(first.decay2);
      keep = V::set(first.keep);
      for (int part = 1; part < item.parts; ++part) {
        const CatchUp& next = *row.of[item.segment + part];
        const auto lanes = V::from(item.lane[part]);
        total = V::blend(total, next.total, lanes);
        eps = V::blend(eps, next.eps, lanes);
        skew2 = V::blend(skew2, next.skew2, lanes);
        skew3 = V::blend(skew3, next.skew3, lanes);
        trust = V::blend(trust, next.trust, lanes);
        decay1 = V::blend(decay1, next.decay1, lanes);
        decay2 = V::blend(decay2, next.decay2, lanes);
        keep = V::blend(keep, next.keep, lanes);
      }
    }

    /// The values after the sleep. `replay` sums the lanes of a mask term by term, those beyond the
    /// formula's trust.
    template <class Replay>
    void end(Values& x, const Replay& replay) const {
      const Float inverse = V::div(V::set(1.0f), V::add(V::sqrt(x.v), eps));
      const Float rho = V::mul(eps, inverse);
      const Float correction =
          V::fma(V::mul(rho, rho), V::sub(skew2, V::mul(skew3, rho)), V::set(1.0f));
      Float moved = V::mul(V::mul(V::mul(x.m, inverse), total), correction);
      const unsigned lanes = V::beyond(rho, trust, x.m);
      if (__builtin_expect(lanes != 0, 0)) moved = replay(lanes, x, moved);
      x.w = V::sub(V::mul(x.w, keep), moved);
      x.m = V::mul(x.m, decay1);
      x.v = V::mul(x.v, decay2);
    }
  };
};

}  // namespace
}  // namespace gs::adam
