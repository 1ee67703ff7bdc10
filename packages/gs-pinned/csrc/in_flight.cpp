// SPDX-License-Identifier: Apache-2.0
#include "in_flight.hpp"

#if defined(GS_WITH_CUDA)
#include <atomic>
#include <chrono>

#include "doze.hpp"
#include "gs/cuda/check.hpp"
#endif

namespace gs::pinned {

#if defined(GS_WITH_CUDA)

namespace {

using Clock = std::chrono::steady_clock;

cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

// Asks CUDA for something that is allowed while another thread captures a graph, and leaves that
// capture alone.
template <class Question>
cudaError_t ask(Question&& question) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  const cudaError_t status = question();
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  return status;
}

// Whether an event has passed.
cudaError_t status_of(void* event) {
  return ask([&] { return cudaEventQuery(as_event(event)); });
}

// A stream's number, unlike its handle, is never another one's: cudaStreamPerThread is the handle
// of one stream in each thread, and that of a stream destroyed may come again while its work goes
// on. Older toolkits have no such numbers: there each use counts as one of a stream of its own.
std::uint64_t number_of(cuda::StreamView stream) {
#if CUDART_VERSION >= 12000
  unsigned long long number = 0;
  GS_CUDA_TRY(ask([&] { return cudaStreamGetId(stream.get(), &number); }));
  return number;
#else
  (void)stream;
  static std::atomic<std::uint64_t> last{0};
  return ++last;
#endif
}

}  // namespace

InFlight::~InFlight() {
  if (uses_.empty()) return;  // in a child process a thread that does not exist may hold the lock
  wait();
  for (const Use& use : uses_) (void)cudaEventDestroy(as_event(use.event));
}

bool InFlight::record(int device, cuda::StreamView stream) {
  // An event recorded into a graph can't be asked for; who replays the graph keeps the memory.
  cuda::DeviceGuard guard(device);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  GS_CUDA_TRY(cudaStreamIsCapturing(stream.get(), &capture));
  if (capture != cudaStreamCaptureStatusNone) return false;
  const std::uint64_t number = number_of(stream);
  std::lock_guard<std::mutex> lock(mutex_);
  Use* found = nullptr;
  for (Use& use : uses_) {
    const bool same = use.device == device && use.number == number;
    // An entry whose work has ended may serve another stream of its device.
    const bool reusable =
        found == nullptr && use.device == device && status_of(use.event) == cudaSuccess;
    if (same || reusable) found = &use;
    if (same) break;
  }
  cudaGetLastError();  // cudaErrorNotReady is an answer here, not a failure
  if (found == nullptr) {
    cudaEvent_t event = nullptr;
    // Not a blocking event: of those the driver takes only about fifty on a stream that is held,
    // and then stops the thread that records.
    GS_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    uses_.push_back(Use{device, number, event});
    found = &uses_.back();
  }
  found->number = number;
  GS_CUDA_TRY(cudaEventRecord(as_event(found->event), stream.get()));
  return true;
}

void InFlight::order_after(int device, cuda::StreamView stream) {
  cuda::DeviceGuard guard(device);
  const std::uint64_t number = number_of(stream);
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Use& use : uses_)
    if (use.device != device || use.number != number)
      GS_CUDA_TRY(cudaStreamWaitEvent(stream.get(), as_event(use.event), 0));
}

void InFlight::wait() noexcept {
  // The list is copied so that other threads may record while this one waits; events live as long
  // as this object.
  std::vector<Use> uses;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    uses = uses_;
  }
  constexpr double kNoLimit = 1.0;
  const Clock::time_point start = Clock::now();
  for (const Use& use : uses)
    while (status_of(use.event) == cudaErrorNotReady)
      doze(std::chrono::duration<double>(Clock::now() - start).count(), kNoLimit);
  cudaGetLastError();
}

void InFlight::raise_errors() {
  // Whoever records may be stuck in a full queue, which only the caller's thread may end up
  // freeing.
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (const Use& use : uses_) {
    const cudaError_t status = status_of(use.event);
    if (status == cudaErrorNotReady)
      cudaGetLastError();
    else
      GS_CUDA_TRY(status);
  }
}

bool InFlight::busy() {
  // As above; and what is being recorded has not ended.
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return true;
  bool found = false;
  for (const Use& use : uses_) found = found || status_of(use.event) == cudaErrorNotReady;
  cudaGetLastError();
  return found;
}

#else

InFlight::~InFlight() = default;
bool InFlight::record(int, cuda::StreamView) { return true; }
void InFlight::order_after(int, cuda::StreamView) {}
void InFlight::wait() noexcept {}
void InFlight::raise_errors() {}
bool InFlight::busy() { return false; }

#endif

void InFlight::forget() noexcept { uses_.clear(); }

}  // namespace gs::pinned
