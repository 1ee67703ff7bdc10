// SPDX-License-Identifier: Apache-2.0
#include "prefilter.hpp"

namespace {
#include "prefilter.inl"
}  // namespace

gs::cull::PrefilterKernels gs::cull::prefilter_avx512() { return {load, filter}; }
