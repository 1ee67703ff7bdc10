// SPDX-License-Identifier: Apache-2.0
// What gs/cuda/check.hpp uses of the CUDA runtime, played by a machine of two devices that fails on
// demand: tests of the header need no toolkit and no GPU.
#pragma once

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidDevice = 101 };

namespace fake {

struct Machine {
  int device = 0;                     // the current one
  int n_sets = 0;                     // calls of cudaSetDevice
  cudaError_t refuses = cudaSuccess;  // what cudaGetDevice returns
  cudaError_t sticky = cudaSuccess;   // what cudaGetLastError would say
};

inline Machine machine;

inline cudaError_t note(cudaError_t status) {
  if (status != cudaSuccess) machine.sticky = status;
  return status;
}

}  // namespace fake

inline cudaError_t cudaGetDevice(int* device) {
  *device = fake::machine.device;
  return fake::note(fake::machine.refuses);
}

inline cudaError_t cudaSetDevice(int device) {
  ++fake::machine.n_sets;
  if (device < 0 || device > 1) return fake::note(cudaErrorInvalidDevice);
  fake::machine.device = device;
  return cudaSuccess;
}

inline cudaError_t cudaGetLastError() {
  const cudaError_t last = fake::machine.sticky;
  fake::machine.sticky = cudaSuccess;
  return last;
}

inline const char* cudaGetErrorName(cudaError_t status) {
  return status == cudaSuccess ? "cudaSuccess" : "cudaErrorInvalidDevice";
}

inline const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaSuccess ? "no error" : "invalid device ordinal";
}
