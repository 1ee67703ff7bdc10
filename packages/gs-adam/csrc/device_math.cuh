// SPDX-License-Identifier: Apache-2.0
// An optimizer step of one value on a device: the operations of kernel_math.hpp in their order.
#pragma once

#include "kernel.hpp"

namespace gs::adam {
namespace {

__device__ __forceinline__ void take_step(const Step& k, float g, float& w, float& m, float& v) {
  m = fmaf(k.blend, g - m, k.from_gradient ? g : m);
  v = fmaf(k.beta2, v, k.weight2 * g * g);
  const float denominator = fmaf(sqrtf(v), k.inverse_root, k.eps);
  w = fmaf(-k.rate, m / denominator, w * k.keep);
}

}  // namespace
}  // namespace gs::adam
