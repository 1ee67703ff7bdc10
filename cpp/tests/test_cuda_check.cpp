// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <type_traits>

#include "check.hpp"
#include "gs/cuda/check.hpp"

namespace {

using gs::cuda::DeviceGuard;

void a_failed_call_is_named_with_its_error_and_place() {
  fake::machine = {};
  GS_CUDA_TRY(cudaSetDevice(1));
  CHECK(fake::machine.device == 1);
  CHECK_THROWS(gs::CudaError,
               "cudaSetDevice(7) failed: cudaErrorInvalidDevice (invalid device ordinal) at ",
               GS_CUDA_TRY(cudaSetDevice(7)));
  const std::string place = std::string(__FILE__) + ":" + std::to_string(__LINE__ + 1);
  const auto fail = [] { GS_CUDA_TRY(cudaSetDevice(7)); };
  CHECK_THROWS(gs::CudaError, place, fail());
}

void a_failure_is_reported_once() {
  fake::machine = {};
  CHECK_THROWS(gs::CudaError, "cudaSetDevice(-1)", GS_CUDA_TRY(cudaSetDevice(-1)));
  CHECK(cudaGetLastError() == cudaSuccess);
}

void a_guard_restores_the_device() {
  fake::machine = {};
  {
    const DeviceGuard outer(1);
    CHECK(fake::machine.device == 1);
    {
      const DeviceGuard inner(0);
      CHECK(fake::machine.device == 0);
    }
    CHECK(fake::machine.device == 1);
  }
  CHECK(fake::machine.device == 0);
}

void a_guard_restores_the_device_when_its_scope_throws() {
  fake::machine = {};
  const auto fail = [] {
    const DeviceGuard guard(1);
    GS_CUDA_TRY(cudaSetDevice(2));
  };
  CHECK_THROWS(gs::CudaError, "cudaSetDevice(2)", fail());
  CHECK(fake::machine.device == 0);
}

void a_guard_of_the_current_device_sets_nothing_first() {
  fake::machine = {};
  const DeviceGuard guard(0);
  CHECK(fake::machine.n_sets == 0);
}

void a_guard_that_cannot_be_made_throws_and_changes_nothing() {
  fake::machine = {};
  CHECK_THROWS(gs::CudaError, "cudaSetDevice", DeviceGuard(2));
  CHECK(fake::machine.device == 0);
  fake::machine.refuses = cudaErrorInvalidDevice;
  CHECK_THROWS(gs::CudaError, "cudaGetDevice", DeviceGuard(1));
  CHECK(fake::machine.device == 0);
}

static_assert(!std::is_copy_constructible_v<DeviceGuard>);
static_assert(!std::is_convertible_v<int, DeviceGuard>);

}  // namespace

int main() {
  a_failed_call_is_named_with_its_error_and_place();
  a_failure_is_reported_once();
  a_guard_restores_the_device();
  a_guard_restores_the_device_when_its_scope_throws();
  a_guard_of_the_current_device_sets_nothing_first();
  a_guard_that_cannot_be_made_throws_and_changes_nothing();
}
