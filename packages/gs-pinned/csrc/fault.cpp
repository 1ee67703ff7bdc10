// SPDX-License-Identifier: Apache-2.0
#include "fault.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "gs/error.hpp"
#include "memory.hpp"

namespace gs::pinned {
namespace {

std::mutex creation;
std::atomic<Fault*> record{nullptr};
std::atomic<pid_t> record_pid{0};

}  // namespace

Fault* fault_record(int device) {
  std::lock_guard<std::mutex> guard(creation);
  if (record == nullptr) {
    auto memory = std::make_unique<Memory>(sizeof(Fault), Lock::kCuda, device, false);
    memory->grow(sizeof(Fault), false);
    // Left to the end of the process: kernels may still run when destructors do.
    record_pid = getpid();
    record = reinterpret_cast<Fault*>(memory.release()->data());
  }
  return record;
}

void raise_faults() {
  Fault* fault = record;
  // Page-locked memory is not there in a child process, which has no transfers on a device either.
  if (fault == nullptr || record_pid != getpid() || fault->met == 0) return;
  fault->met = 0;
  GS_CHECK_AS(RangeError, false, "an earlier transfer met row id ", fault->id,
              ", which must lie in [0, ", fault->rows,
              "); it left that row alone. Set GS_CHECK_INDEX=1 to have the call itself raise");
}

}  // namespace gs::pinned
