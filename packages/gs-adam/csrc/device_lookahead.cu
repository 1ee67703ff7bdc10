// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "device_lanes.cuh"
#include "device_lookahead.hpp"
#include "device_sleep.cuh"
#include "gs/cuda/check.hpp"

namespace gs::adam {
namespace {

// As device_slots.cu's: threads hide what others wait for.
constexpr int kThreads = 256;
constexpr int kBlocks = 5;

// What a launch can be given.
static_assert(sizeof(DeviceLookahead) <= 4096);

__device__ Slept slept_of(const DeviceLookahead& job, std::int64_t row) {
  return {job.last_step[id_at(job.ids, row)], job.target};
}

__device__ __forceinline__ float& output_at(const LookaheadColumns& tensor, std::int64_t row,
                                            int column) {
  return tensor.out[row * tensor.width + column - (tensor.end - tensor.width)];
}

/// Values of which one is to be summed term by term or has decayed for longer than a window, apart
/// from the others and from memory again.
template <int kLanes>
__device__ __noinline__ void look_at_rare(const DeviceLookahead& job, std::int64_t row,
                                          int column) {
  const Slept slept = slept_of(job, row);
  const std::int64_t row_at = id_at(job.slots, row) * job.width;
  int k = 0;
#pragma unroll 1
  for (int i = 0; i < kLanes; ++i, ++column) {
    while (column >= job.tensors[k].end) ++k;
    const LookaheadColumns& tensor = job.tensors[k];
    const std::int64_t at = row_at + column;
    float w = job.param[at], m = job.exp_avg[at], v = job.exp_avg_sq[at], moved;
    CatchUp missed = look_up(tensor.sleep, slept);
    if (lacks_decay(tensor.sleep, slept)) add_decay(tensor.sleep, slept, missed);
    if (!movement(missed, m, v, moved)) moved = replay(tensor.sleep, slept, m, v);
    end_sleep(missed, moved, w, m, v);
    output_at(tensor, row, column) = w;
  }
}

/// False, nothing written, where one of the values is rare.
template <int kLanes, bool kSleeps>
__device__ __forceinline__ bool look_at_values(const DeviceLookahead& job, std::int64_t row,
                                               int column) {
  const std::int64_t at = id_at(job.slots, row) * job.width + column;
  const Slept slept = kSleeps ? slept_of(job, row) : Slept{0, 0};
  Values<kLanes> w = values_at<kLanes>(job.param, at);
  if (kSleeps && slept.steps() > 0) {
    Values<kLanes> m = values_at<kLanes>(job.exp_avg, at);
    Values<kLanes> v = values_at<kLanes>(job.exp_avg_sq, at);
    CatchUp missed;
    bool is_good = true;
    for_lanes<kLanes>(job, column, [&](const LookaheadColumns& tensor, int i, bool is_first) {
      if (is_first) {
        missed = look_up(tensor.sleep, slept);
        is_good = is_good && !lacks_decay(tensor.sleep, slept);
      }
      float moved;
      is_good = movement(missed, m.of[i], v.of[i], moved) && is_good;
      end_sleep(missed, moved, w.of[i], m.of[i], v.of[i]);
    });
    if (!is_good) return false;
  }
  for_lanes<kLanes>(job, column, [&](const LookaheadColumns& tensor, int i, bool) {
    output_at(tensor, row, column + i) = w.of[i];
  });
  return true;
}

template <int kLanes, bool kSleeps>
__global__ void __launch_bounds__(kThreads, kBlocks)
    device_lookahead_kernel(const __grid_constant__ DeviceLookahead job) {
  const unsigned local = threadIdx.x / job.row_threads;
  const unsigned thread = threadIdx.x - local * job.row_threads;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * job.block_rows + local;
  const int column = job.first_column + static_cast<int>(thread) * kLanes;
  if (local >= job.block_rows || row >= job.slots.size || column >= job.end_column) return;
  if (!look_at_values<kLanes, kSleeps>(job, row, column)) look_at_rare<kLanes>(job, row, column);
}

template <int kLanes>
void launch(const DeviceLookahead& job, cuda::StreamView stream) {
  const auto blocks = static_cast<unsigned>((job.slots.size + job.block_rows - 1) / job.block_rows);
  if (job.last_step == nullptr)
    device_lookahead_kernel<kLanes, false><<<blocks, kThreads, 0, stream.get()>>>(job);
  else
    device_lookahead_kernel<kLanes, true><<<blocks, kThreads, 0, stream.get()>>>(job);
}

}  // namespace

void launch_device_lookahead(DeviceLookahead job, int device, cuda::StreamView stream) {
  if (job.slots.size == 0) return;
  const cuda::DeviceGuard guard(device);
  const int lanes = job.has_quads ? 4 : 1;
  while (job.end_column < job.width) {
    job.first_column = job.end_column;
    job.end_column = std::min(job.width, job.first_column + lanes * kThreads);
    job.row_threads = (job.end_column - job.first_column) / lanes;
    job.block_rows = kThreads / job.row_threads;
    if (job.has_quads)
      launch<4>(job, stream);
    else
      launch<1>(job, stream);
    GS_CUDA_TRY(cudaGetLastError());
  }
}

}  // namespace gs::adam
