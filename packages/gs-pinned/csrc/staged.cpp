// SPDX-License-Identifier: Apache-2.0
#include "staged.hpp"

#include <algorithm>
#include <memory>
#include <mutex>

#include "gs/cuda/check.hpp"
#include "memory.hpp"

namespace gs::pinned {
namespace {

constexpr std::size_t kStagingBytes = std::size_t{32} << 20;

// The locked buffer: rows from the front, ids behind them. Left to the end of the process, because
// streams may use it while destructors run.
struct Staging {
  std::mutex mutex;
  Memory* memory = nullptr;

  static Staging& of_module() {
    static Staging* const staging = new Staging();
    return *staging;
  }

  void make_room(std::size_t bytes, int device) {
    if (memory == nullptr) memory = new Memory(physical_bytes(), Lock::kCuda, device);
    memory->grow(std::max(bytes, kStagingBytes), false);
  }
};

struct HostWork {
  Transfer transfer;
  Fault* fault;
};

// Runs on a thread of the driver, in stream order.
void CUDART_CB run_host_work(void* data) {
  const std::unique_ptr<HostWork> work(static_cast<HostWork*>(data));
  const Transfer& t = work->transfer;
  std::int64_t bad = 0;
  if (!find_bad_id(t.whole_ids, t.n, t.whole_rows, &bad)) return transfer_on_host(t);
  work->fault->id = bad;
  work->fault->rows = t.whole_rows;
  work->fault->met = 1;
  for (std::int64_t i = 0; i < t.n; ++i) {
    const Transfer one = t.piece(i, 1);
    if (!find_bad_id(one.whole_ids, 1, t.whole_rows, &bad)) transfer_on_host(one);
  }
}

}  // namespace

void transfer_staged(const Transfer& t, const Launch& launch) {
  if (t.n == 0 || t.n_parts == 0) return;
  Staging& staging = Staging::of_module();
  std::lock_guard<std::mutex> guard(staging.mutex);
  const std::int64_t id_bytes = t.whole_ids.data == nullptr ? 0 : t.whole_ids.bytes_each();
  const auto room = static_cast<std::int64_t>(kStagingBytes) - 64;
  const std::int64_t most = std::max<std::int64_t>(1, room / (t.row_bytes + id_bytes));
  const std::size_t rows_end = round_up(static_cast<std::size_t>(most * t.row_bytes), 64);
  staging.make_room(rows_end + static_cast<std::size_t>(most * id_bytes), launch.device);

  cuda::DeviceGuard on(launch.device);
  const cudaStream_t stream = cuda::as_stream(launch.stream);
  staging.memory->in_flight().order_after(launch.device, launch.stream);
  for (std::int64_t first = 0; first < t.n; first += most) {
    const Transfer piece = t.piece(first, std::min(most, t.n - first));
    Transfer on_device = piece;
    on_device.whole = staging.memory->data();
    on_device.whole_stride = t.row_bytes;
    on_device.whole_rows = piece.n;
    on_device.whole_ids = Ids{};
    on_device.add = false;
    auto work = std::make_unique<HostWork>(HostWork{piece, launch.fault});
    work->transfer.parts_ids = Ids{};
    work->transfer.parts_rows = piece.n;
    for (int k = 0; k < t.n_parts; ++k) {
      work->transfer.parts[k].data = on_device.whole + t.parts[k].offset;
      work->transfer.parts[k].stride = t.row_bytes;
    }
    if (id_bytes > 0) {
      char* ids = staging.memory->data() + rows_end;
      GS_CUDA_TRY(cudaMemcpyAsync(ids, piece.whole_ids.data, piece.n * id_bytes,
                                  cudaMemcpyDeviceToHost, stream));
      work->transfer.whole_ids.data = ids;
    }
    if (!t.to_parts) transfer_on_device(on_device, launch);
    GS_CUDA_TRY(cudaLaunchHostFunc(stream, run_host_work, work.get()));
    (void)work.release();  // the function deletes it
    if (t.to_parts) transfer_on_device(on_device, launch);
  }
  staging.memory->in_flight().record(launch.device, launch.stream);
}

}  // namespace gs::pinned
