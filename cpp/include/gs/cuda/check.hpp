// SPDX-License-Identifier: Apache-2.0
// Calls of the CUDA runtime that throw, and the device that a call runs on.
#pragma once

#include <cuda_runtime_api.h>

#include "gs/error.hpp"

namespace gs::cuda {

/// Throws gs::CudaError with the call, CUDA's name and text for the error, file and line; clears
/// the sticky error first.
inline void check(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  detail::throw_error<CudaError>(call, " failed: ", cudaGetErrorName(status), " (",
                                 cudaGetErrorString(status), ") at ", file, ":", line);
}

/// Makes a device current and restores the previous one at the end of the scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&previous_), "cudaGetDevice", __FILE__, __LINE__);
    if (previous_ != device) check(cudaSetDevice(device), "cudaSetDevice", __FILE__, __LINE__);
  }
  ~DeviceGuard() { (void)cudaSetDevice(previous_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace gs::cuda

#define GS_CUDA_TRY(call) ::gs::cuda::check((call), #call, __FILE__, __LINE__)
