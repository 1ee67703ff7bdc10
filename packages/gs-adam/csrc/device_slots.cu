// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "device_lanes.cuh"
#include "device_math.cuh"
#include "device_sleep.cuh"
#include "device_slots.hpp"
#include "gs/cuda/check.hpp"

namespace gs::adam {
namespace {

// What a value waits for, its row's ids and then its memory, is hidden by other threads alone.
constexpr int kThreads = 256;
constexpr int kBlocks = 5;

// What a launch can be given.
static_assert(sizeof(DeviceSlots) <= 4096);

__device__ Slept slept_of(const DeviceSlots& job, std::int64_t row) {
  return {job.last_step[id_at(job.ids, row)], job.step - 1};
}

/// Values of which one is to be summed term by term or has decayed for longer than a window. Apart
/// from the others, and from memory again, so that these few cost the many no registers.
template <int kLanes, bool kSteps>
__device__ __noinline__ void update_rare(const DeviceSlots& job, std::int64_t row, int column) {
  const Slept slept = slept_of(job, row);
  const std::int64_t row_at = id_at(job.slots, row) * job.width;
  int k = 0;
#pragma unroll 1
  for (int i = 0; i < kLanes; ++i, ++column) {
    while (column >= job.tensors[k].end) ++k;
    const DeviceColumns& tensor = job.tensors[k];
    const std::int64_t at = row_at + column;
    float w = job.param[at], m = job.exp_avg[at], v = job.exp_avg_sq[at], moved;
    CatchUp missed = look_up(tensor.sleep, slept);
    if (lacks_decay(tensor.sleep, slept)) add_decay(tensor.sleep, slept, missed);
    if (!movement(missed, m, v, moved)) moved = replay(tensor.sleep, slept, m, v);
    end_sleep(missed, moved, w, m, v);
    if (kSteps) take_step(tensor.step, job.grads[row * job.grad_stride + column], w, m, v);
    job.param[at] = w;
    job.exp_avg[at] = m;
    job.exp_avg_sq[at] = v;
  }
}

/// False, nothing written, where one of the values is rare.
template <int kLanes, bool kSleeps, bool kSteps>
__device__ __forceinline__ bool update_values(const DeviceSlots& job, std::int64_t row,
                                              int column) {
  const std::int64_t slot = id_at(job.slots, row);
  // Not a reason to wait before the values are read, unless they might not have to be.
  const Slept slept = kSleeps ? slept_of(job, row) : Slept{0, 0};
  if (!kSteps && slept.steps() <= 0) return true;
  const std::int64_t at = slot * job.width + column;
  Values<kLanes> w = values_at<kLanes>(job.param, at);
  Values<kLanes> m = values_at<kLanes>(job.exp_avg, at);
  Values<kLanes> v = values_at<kLanes>(job.exp_avg_sq, at);
  Values<kLanes> g{};
  if (kSteps) g = values_at<kLanes>(job.grads, row * job.grad_stride + column);
  if (kSleeps && slept.steps() > 0) {
    CatchUp missed;
    bool is_good = true;
    for_lanes<kLanes>(job, column, [&](const DeviceColumns& tensor, int i, bool is_first) {
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
  if (kSteps) {
    Step step;
    for_lanes<kLanes>(job, column, [&](const DeviceColumns& tensor, int i, bool is_first) {
      if (is_first) step = tensor.step;
      take_step(step, g.of[i], w.of[i], m.of[i], v.of[i]);
    });
  }
  values_at<kLanes>(job.param, at) = w;
  values_at<kLanes>(job.exp_avg, at) = m;
  values_at<kLanes>(job.exp_avg_sq, at) = v;
  return true;
}

/// Adds how many of a block's threads have a row, and one that slept, one atomic each a block.
__device__ void add_counts(std::int64_t* counts, bool has_row, bool slept) {
  const int n_rows = __syncthreads_count(has_row);
  const int n_slept = __syncthreads_count(slept);
  if (threadIdx.x != 0) return;
  static_assert(sizeof(unsigned long long) == sizeof(std::int64_t));
  auto* const totals = reinterpret_cast<unsigned long long*>(counts);
  if (n_rows > 0) atomicAdd(totals, static_cast<unsigned long long>(n_rows));
  if (n_slept > 0) atomicAdd(totals + 1, static_cast<unsigned long long>(n_slept));
}

template <int kLanes, bool kSleeps, bool kSteps>
__global__ void __launch_bounds__(kThreads, kBlocks)
    device_slots_kernel(const __grid_constant__ DeviceSlots job) {
  // A row's threads are one block's, so that none reads last_step after it was written.
  const unsigned local = threadIdx.x / job.row_threads;
  const unsigned thread = threadIdx.x - local * job.row_threads;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * job.block_rows + local;
  const int column = job.first_column + static_cast<int>(thread) * kLanes;
  const bool has_row = local < job.block_rows && row < job.slots.size &&
                       (job.marks == nullptr || job.marks[row] != 0);
  if (has_row && column < job.end_column)
    if (!update_values<kLanes, kSleeps, kSteps>(job, row, column))
      update_rare<kLanes, kSteps>(job, row, column);
  if (!kSleeps || job.end_column < job.width) return;
  __syncthreads();
  const bool leads = has_row && thread == 0;
  std::int32_t* const last_step = leads ? &job.last_step[id_at(job.ids, row)] : nullptr;
  if (kSteps) {
    if (leads) *last_step = job.step;
    return;
  }
  const bool slept = leads && *last_step < job.step - 1;
  if (slept) *last_step = job.step - 1;
  if (job.counts != nullptr) add_counts(job.counts, leads, slept);
}

template <int kLanes>
void launch(const DeviceSlots& job, cuda::StreamView stream) {
  const auto blocks = static_cast<unsigned>((job.slots.size + job.block_rows - 1) / job.block_rows);
  if (job.last_step == nullptr)
    device_slots_kernel<kLanes, false, true><<<blocks, kThreads, 0, stream.get()>>>(job);
  else if (job.steps)
    device_slots_kernel<kLanes, true, true><<<blocks, kThreads, 0, stream.get()>>>(job);
  else
    device_slots_kernel<kLanes, true, false><<<blocks, kThreads, 0, stream.get()>>>(job);
}

}  // namespace

void launch_device_slots(DeviceSlots job, int device, cuda::StreamView stream) {
  if (job.slots.size == 0) return;
  const cuda::DeviceGuard guard(device);
  const int lanes = job.has_quads ? 4 : 1;
  // Rows wider than a block take their columns in turns; the last writes last_step.
  do {
    job.first_column = job.end_column;
    job.end_column = std::min(job.width, job.first_column + lanes * kThreads);
    job.row_threads = std::max(1, (job.end_column - job.first_column) / lanes);
    job.block_rows = kThreads / job.row_threads;
    if (job.has_quads)
      launch<4>(job, stream);
    else
      launch<1>(job, stream);
    GS_CUDA_TRY(cudaGetLastError());
  } while (job.end_column < job.width);
}

}  // namespace gs::adam
