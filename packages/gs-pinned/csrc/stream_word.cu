// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>

#include "gs/cuda/check.hpp"
#include "stream_word.hpp"

namespace gs::pinned {
namespace {

std::atomic<bool> operations_enabled{true};

using WordOperation = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

// The driver's function, found at run time: nothing here links against libcuda. Null when the
// driver has none.
WordOperation driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t status = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
  if (status != cudaSuccess) cudaGetLastError();
  const bool usable = status == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return usable ? reinterpret_cast<WordOperation>(function) : nullptr;
}

// Returns whether the driver took the operation.
bool enqueue(WordOperation operation, std::uint32_t* word, std::uint32_t value, int device,
             cuda::StreamView stream, unsigned flags) {
  if (!operations_enabled || operation == nullptr) return false;
  // The driver wants the device's context current on this thread. On one that has not used the
  // device yet, where a guard finds it chosen by default, only this makes it so.
  GS_CUDA_TRY(cudaSetDevice(device));
  const CUresult result = operation(
      stream.get(), static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(word)), value, flags);
  GS_CHECK_AS(CudaError, result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_SUPPORTED,
              "a stream memory operation failed: CUDA driver error ", static_cast<int>(result));
  return result == CUDA_SUCCESS;
}

__global__ void write_word_kernel(volatile std::uint32_t* word, std::uint32_t value) {
  __threadfence_system();
  *word = value;
}

__global__ void wait_word_kernel(volatile std::uint32_t* word, std::uint32_t value) {
  while (static_cast<std::int32_t>(*word - value) < 0) __nanosleep(500);
  __threadfence_system();
}

}  // namespace

void write_word_on(std::uint32_t* word, std::uint32_t value, int device, cuda::StreamView stream) {
  static const WordOperation operation = driver_function("cuStreamWriteValue32");
  cuda::DeviceGuard guard(device);
  if (enqueue(operation, word, value, device, stream, CU_STREAM_WRITE_VALUE_DEFAULT)) return;
  write_word_kernel<<<1, 1, 0, stream.get()>>>(word, value);
  GS_CUDA_TRY(cudaGetLastError());
}

void wait_word_on(std::uint32_t* word, std::uint32_t value, int device, cuda::StreamView stream) {
  static const WordOperation operation = driver_function("cuStreamWaitValue32");
  cuda::DeviceGuard guard(device);
  if (enqueue(operation, word, value, device, stream, CU_STREAM_WAIT_VALUE_GEQ)) return;
  wait_word_kernel<<<1, 1, 0, stream.get()>>>(word, value);
  GS_CUDA_TRY(cudaGetLastError());
}

void load_word_kernels() {
  cudaFuncAttributes attributes;
  GS_CUDA_TRY(cudaFuncGetAttributes(&attributes, write_word_kernel));
  GS_CUDA_TRY(cudaFuncGetAttributes(&attributes, wait_word_kernel));
}

void use_stream_operations(bool enabled) { operations_enabled = enabled; }

}  // namespace gs::pinned
