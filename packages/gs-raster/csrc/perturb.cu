// SPDX-License-Identifier: Apache-2.0
#include "gs/cuda/check.hpp"
#include "launch.cuh"
#include "normal_numbers.cuh"
#include "perturb.hpp"
#include "projection.cuh"
#include "row_geometry.cuh"

namespace gs::raster {

namespace {

// The share of the noise that a row takes falls from 1 to 0 around an opacity, this steeply.
constexpr float kSteepness = 100.0f, kFaintOpacity = 0.005f;

__device__ __forceinline__ bool is_zero(const Quaternion& q) {
  return q.w == 0.0f && q.v.x == 0.0f && q.v.y == 0.0f && q.v.z == 0.0f;
}

/// The product with a row's covariance Q S S Q^T.
__device__ __forceinline__ Float3 times_covariance(const Quaternion& quat, const Float3& log_scale,
                                                   const Float3& v) {
  const Quaternion unit = is_zero(quat) ? Quaternion{1.0f, {0.0f, 0.0f, 0.0f}} : normalise(quat).q;
  const Columns3 Q = rotation(unit);
  const Float3 variance{expf(2.0f * log_scale.x), expf(2.0f * log_scale.y),
                        expf(2.0f * log_scale.z)};
  return multiply(Q, multiply(multiply_transposed(Q, v), variance));
}

__global__ void __launch_bounds__(kThreads)
    perturb_kernel(NoisyRows rows, NoiseSource source, float size) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows.n) return;
  const auto slot = static_cast<std::int32_t>(i);
  const float opacity = sigmoid(__ldg(at(rows.opacities, slot))).value;
  const float amount = size * sigmoid(kSteepness * (kFaintOpacity - opacity)).value;
  if (amount == 0.0f) return;  // as of every row of an opacity above 0.9
  const auto key = static_cast<std::uint32_t>(__ldg(rows.keys + i));
  const Float3 z = three_normals({key, 0u, source.step, source.purpose}, source.seed) * amount;
  const Float3 offset =
      times_covariance(load_quaternion(rows.quats, slot), load3(rows.scales, slot), z);
  float* const mean = at(rows.means, slot);
  mean[0] += offset.x;
  mean[1] += offset.y;
  mean[2] += offset.z;
}

}  // namespace

void perturb(const NoisyRows& rows, const NoiseSource& source, float size,
             cuda::StreamView stream) {
  if (rows.n == 0) return;
  perturb_kernel<<<blocks_for(rows.n), kThreads, 0, stream.get()>>>(rows, source, size);
  GS_CUDA_TRY(cudaGetLastError());
}

}  // namespace gs::raster
