// SPDX-License-Identifier: Apache-2.0
// Splats of equal depth, which a clone and its parent have, in the order of their keys.
//
// A short run is ordered by counting: each splat looks at the others of its run. Long runs, which
// only made-up scenes have, are merged by a block each. Equal keys, which no caller should give,
// stay as they are sorted: every splat has one place.
#pragma once

#include "cutter.hpp"
#include "depth_keys.hpp"
#include "gs/cuda/check.hpp"
#include "gs/cuda/stream_view.hpp"
#include "launch.cuh"
#include "sort_source.cuh"

namespace gs::raster {

constexpr int kLongRun = 32;

/// Workspace of break_ties().
struct TieArrays {
  std::int32_t* n_long;       // (1,), 0 before
  std::int32_t* long_begins;  // where long runs begin
  std::int32_t* scratch;      // (n,)

  TieArrays() = default;
  TieArrays(Cutter& cutter, std::int64_t n)
      : n_long(cutter.take<std::int32_t>(1)),
        long_begins(cutter.take<std::int32_t>(n / kLongRun + 1)),
        scratch(cutter.take<std::int32_t>(n)) {}
};

namespace ties {

__device__ __forceinline__ std::int32_t key_of(const Keys& keys, std::int32_t splat) {
  return keys.keys[keys.slots != nullptr ? keys.slots[splat] : splat];
}

template <class Source>
__global__ void __launch_bounds__(kThreads)
    short_runs_kernel(Source source, const std::uint32_t* __restrict__ depths,
                      const std::int32_t* __restrict__ sorted, std::int32_t* __restrict__ order,
                      TieArrays arrays) {
  const Keys keys = source.job().keys;
  const std::int64_t n = source.job().n;
  const std::int64_t k = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= n) return;
  const std::uint32_t depth = depths[k];
  const std::int32_t splat = sorted[k];
  std::int64_t place = k;
  if (keys.keys != nullptr && depth != kNotShown) {
    std::int64_t begin = k, end = k + 1;
    while (begin > 0 && k - begin < kLongRun && depths[begin - 1] == depth) --begin;
    while (end < n && end - begin <= kLongRun && depths[end] == depth) ++end;
    if (end - begin > kLongRun) {
      if (k == 0 || depths[k - 1] != depth)
        arrays.long_begins[atomicAdd(arrays.n_long, 1)] = static_cast<std::int32_t>(k);
    } else if (end - begin > 1) {
      const std::int32_t key = key_of(keys, splat);
      place = begin;
      for (std::int64_t j = begin; j < end; ++j) {
        const std::int32_t other = key_of(keys, sorted[j]);
        place += other < key || (other == key && j < k) ? 1 : 0;
      }
    }
  }
  order[place] = splat;
}

/// Elements of sorted[0, n) with a key below `key`, or at most `key`.
__device__ __forceinline__ std::int64_t n_below(const std::int32_t* sorted, const Keys& keys,
                                                std::int64_t n, std::int32_t key, bool or_equal) {
  std::int64_t low = 0, high = n;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    const std::int32_t found = key_of(keys, sorted[middle]);
    if (found < key || (or_equal && found == key))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

template <class Source>
__global__ void __launch_bounds__(kThreads)
    long_runs_kernel(Source source, const std::uint32_t* __restrict__ depths, std::int32_t* order,
                     TieArrays arrays) {
  const Keys keys = source.job().keys;
  const std::int64_t n = source.job().n;
  for (int run = static_cast<int>(blockIdx.x); run < *arrays.n_long;
       run += static_cast<int>(gridDim.x)) {
    const std::int64_t begin = arrays.long_begins[run];
    std::int64_t low = begin, high = n;  // the run's end is the first place of another depth
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (depths[middle] == depths[begin])
        low = middle + 1;
      else
        high = middle;
    }
    const std::int64_t length = low - begin;
    std::int32_t *from = order + begin, *to = arrays.scratch + begin;
    for (std::int64_t width = 1; width < length; width *= 2) {
      for (std::int64_t i = threadIdx.x; i < length; i += kThreads) {
        const std::int64_t pair = i / (2 * width) * (2 * width);
        const std::int64_t middle = min(pair + width, length), end = min(middle + width, length);
        const bool left = i < middle;
        const std::int64_t before =
            left ? n_below(from + middle, keys, end - middle, key_of(keys, from[i]), false)
                 : n_below(from + pair, keys, width, key_of(keys, from[i]), true);
        to[left ? i + before : i - width + before] = from[i];
      }
      __syncthreads();
      std::int32_t* const merged = to;
      to = from;
      from = merged;
    }
    if (from != order + begin)
      for (std::int64_t i = threadIdx.x; i < length; i += kThreads) order[begin + i] = from[i];
  }
}

}  // namespace ties

/// order: (n,) the splats `sorted` by `depths`, those of equal depth by key.
///
/// depths, sorted: n_places ascending depths and their splats, of which the first n count. Without
/// keys: as sorted.
template <class Source>
void break_ties(const Source& source, bool has_keys, const std::uint32_t* depths,
                const std::int32_t* sorted, std::int64_t n_places, std::int32_t* order,
                const TieArrays& arrays, cuda::StreamView stream) {
  constexpr unsigned kBlocks = 64;
  ties::short_runs_kernel<<<blocks_for(n_places), kThreads, 0, stream.get()>>>(
      source, depths, sorted, order, arrays);
  GS_CUDA_TRY(cudaGetLastError());
  if (!has_keys) return;
  ties::long_runs_kernel<<<kBlocks, kThreads, 0, stream.get()>>>(source, depths, order, arrays);
  GS_CUDA_TRY(cudaGetLastError());
}

}  // namespace gs::raster
