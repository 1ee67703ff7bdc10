// SPDX-License-Identifier: Apache-2.0
// What every launch over rows decides first: the access width, the type of the ids.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gs/cuda/check.hpp"
#include "transfer_cuda.hpp"

namespace gs::pinned {

/// The widest access that divides every address and size given.
class Width {
 public:
  void divides(const void* address) { bits_ |= reinterpret_cast<std::uintptr_t>(address); }
  void divides(std::int64_t bytes) { bits_ |= static_cast<std::uint64_t>(bytes); }
  int bytes() const { return static_cast<int>(bits_ & (~bits_ + 1)); }

 private:
  std::uint64_t bits_ = kWidestAccess;
};

/// Calls body(Id{}) with the type of the ids.
template <class Body>
void with_id_type(bool wide, Body&& body) {
  if (wide)
    body(std::int64_t{});
  else
    body(std::int32_t{});
}

/// Loads one kernel, which its first launch would do otherwise.
template <class Kernel>
void load(Kernel* kernel) {
  cudaFuncAttributes attributes;
  GS_CUDA_TRY(cudaFuncGetAttributes(&attributes, kernel));
}

}  // namespace gs::pinned
