// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#if defined(GS_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace gs::pinned {

#if defined(GS_WITH_CUDA)

std::string device_problem() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    return "no NVIDIA driver, or one older than this build's CUDA toolkit";
  }
  if (status != cudaSuccess) {
    cudaGetLastError();
    return cudaGetErrorString(status);
  }
  return count > 0 ? "" : "no CUDA device";
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

int device_of_stream(cuda::StreamView stream, int otherwise) {
#if CUDART_VERSION >= 12080
  int device = otherwise;
  if (!stream.is_default() && cudaStreamGetDevice(stream.get(), &device) == cudaSuccess)
    return device;
  cudaGetLastError();
#else
  (void)stream;
#endif
  return otherwise;
}

int driver_version() {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess) cudaGetLastError();
  return version;
}

#else

std::string device_problem() {
  return "gs-pinned was built without CUDA; install the CUDA toolkit (nvcc) and build it again";
}

int device_count() { return 0; }

int device_of_stream(cuda::StreamView, int otherwise) { return otherwise; }

int driver_version() { return 0; }

#endif

}  // namespace gs::pinned
