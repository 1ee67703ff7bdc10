// SPDX-License-Identifier: Apache-2.0
#include "staged.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "gs/cuda/check.hpp"
#include "gs/error.hpp"
#include "host_memory.hpp"
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

  // Locks what is usual, or as much as the platform allows but at least so many bytes; how many
  // there are.
  std::size_t make_room(std::size_t least, int device) {
    if (memory == nullptr) memory = new Memory(physical_bytes(), Lock::kCuda, device, false);
    if (memory->size() > 0 && memory->size() >= least) return memory->size();
    for (std::size_t bytes = std::max(least, kStagingBytes);; bytes = std::max(least, bytes / 2)) {
      try {
        memory->grow(bytes, false);
        return memory->size();
      } catch (const MemoryError&) {
        if (bytes == least) throw;
      }
    }
  }
};

// Ids of a piece in the locked buffer, both of one width.
struct StagedIds {
  char* whole = nullptr;
  char* parts = nullptr;
  bool wide = false;

  void mark_bad(std::int64_t i) const {
    if (wide)
      reinterpret_cast<std::int64_t*>(whole)[i] = -1;
    else
      reinterpret_cast<std::int32_t*>(whole)[i] = -1;
  }
  void number(std::int64_t i) const {
    if (wide)
      reinterpret_cast<std::int64_t*>(whole)[i] = i;
    else
      reinterpret_cast<std::int32_t*>(whole)[i] = static_cast<std::int32_t>(i);
  }
};

struct HostWork {
  Transfer transfer;  // between the table and the buffer
  Ids parts_ids;      // rows of the arrays on the device
  std::int64_t parts_rows;
  StagedIds ids;
  Fault* fault;
};

bool note_bad(Ids ids, std::int64_t n, std::int64_t rows, Fault* fault) {
  std::int64_t bad = 0;
  if (!find_bad_id(ids, n, rows, &bad)) return false;
  fault->id = bad;
  fault->rows = rows;
  fault->met = 1;
  return true;
}

// Runs on a thread of the driver, in stream order. A row whose id on either side is out of range is
// left alone: one that comes is told to the kernel behind this by -1 among the ids.
void CUDART_CB run_host_work(void* data) {
  const std::unique_ptr<HostWork> work(static_cast<HostWork*>(data));
  const Transfer& t = work->transfer;
  const bool bad_parts = note_bad(work->parts_ids, t.n, work->parts_rows, work->fault);
  const bool bad_whole = note_bad(t.whole_ids, t.n, t.whole_rows, work->fault);
  if (!bad_parts && !bad_whole) {
    transfer_on_host(t);
  } else {
    std::int64_t bad = 0;
    for (std::int64_t i = 0; i < t.n; ++i) {
      const Transfer one = t.piece(i, 1);
      if (!find_bad_id(one.whole_ids, 1, t.whole_rows, &bad) &&
          !find_bad_id(work->parts_ids.from(i), 1, work->parts_rows, &bad))
        transfer_on_host(one);
    }
  }
  if (work->ids.whole == nullptr || !t.to_parts) return;
  for (std::int64_t i = 0; i < t.n; ++i) {
    const std::int64_t row = id_at(t.whole_ids, i);
    if (row < 0 || row >= t.whole_rows)
      work->ids.mark_bad(i);
    else
      work->ids.number(i);
  }
}

void check_not_captured(cuda::StreamView stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  GS_CUDA_TRY(cudaStreamIsCapturing(stream.get(), &capture));
  GS_CHECK_AS(CudaError, capture == cudaStreamCaptureStatusNone,
              "table must be page-locked where its transfers are captured into a graph, got a "
              "pageable one");
}

// Copies to the buffer; no single copy reaches over two of the pieces that were locked one by one.
void copy_to(Memory& memory, char* to, const void* from, std::size_t bytes,
             cuda::StreamView stream) {
  const std::vector<std::size_t> ends = memory.chunk_ends();
  const auto begin = static_cast<std::size_t>(to - memory.data());
  for (std::size_t at = begin; at < begin + bytes;) {
    const std::size_t end =
        std::min(begin + bytes, *std::upper_bound(ends.begin(), ends.end(), at));
    GS_CUDA_TRY(cudaMemcpyAsync(memory.data() + at, static_cast<const char*>(from) + (at - begin),
                                end - at, cudaMemcpyDeviceToHost, stream.get()));
    at = end;
  }
}

// A piece of a transfer by way of the buffer, which begins with the rows.
void enqueue_piece(const Transfer& piece, Memory& memory, const StagedIds& ids,
                   const Launch& launch) {
  char* const rows = memory.data();
  Transfer on_device = piece;
  on_device.whole = rows;
  on_device.whole_stride = piece.row_bytes;
  on_device.whole_rows = piece.n;
  on_device.whole_ids = Ids{};
  on_device.add = false;
  auto work = std::make_unique<HostWork>(HostWork{piece, {}, piece.parts_rows, ids, launch.fault});
  work->transfer.parts_ids = Ids{};
  work->transfer.parts_rows = piece.n;
  for (int k = 0; k < piece.n_parts; ++k) {
    work->transfer.parts[k].data = rows + piece.parts[k].offset;
    work->transfer.parts[k].stride = piece.row_bytes;
  }
  const auto bring = [&](Ids from, char* to) {
    copy_to(memory, to, from.data, static_cast<std::size_t>(piece.n * from.bytes_each()),
            launch.stream);
    return Ids{to, from.wide};
  };
  if (ids.whole != nullptr) work->transfer.whole_ids = bring(piece.whole_ids, ids.whole);
  if (ids.parts != nullptr) work->parts_ids = bring(piece.parts_ids, ids.parts);
  if (ids.whole != nullptr && piece.to_parts) on_device.whole_ids = work->transfer.whole_ids;
  // The host has all ids and records bad ones; a kernel leaves their rows alone without a word.
  Launch quiet = launch;
  quiet.fault = nullptr;
  if (!piece.to_parts) transfer_on_device(on_device, quiet);
  GS_CUDA_TRY(cudaLaunchHostFunc(launch.stream.get(), run_host_work, work.get()));
  (void)work.release();  // the function deletes it
  if (piece.to_parts) transfer_on_device(on_device, quiet);
}

}  // namespace

void transfer_staged(const Transfer& t, const Launch& launch) {
  if (t.n == 0 || t.n_parts == 0) return;
  cuda::DeviceGuard on(launch.device);
  check_not_captured(launch.stream);
  Staging& staging = Staging::of_module();
  std::lock_guard<std::mutex> guard(staging.mutex);
  const bool has_whole = t.whole_ids.data != nullptr, has_parts = t.parts_ids.data != nullptr;
  const std::int64_t each = has_whole ? t.whole_ids.bytes_each() : t.parts_ids.bytes_each();
  const std::int64_t row_room = t.row_bytes + (has_whole + has_parts) * each;
  constexpr std::int64_t kAligning = 3 * 64;
  const std::size_t room =
      staging.make_room(static_cast<std::size_t>(row_room + kAligning), launch.device);
  const std::int64_t most = (static_cast<std::int64_t>(room) - kAligning) / row_room;
  char* const behind =
      staging.memory->data() + round_up(static_cast<std::size_t>(most * t.row_bytes), 64);
  StagedIds ids;
  ids.wide = has_whole ? t.whole_ids.wide : t.parts_ids.wide;
  if (has_whole) ids.whole = behind;
  if (has_parts)
    ids.parts = behind + (has_whole ? round_up(static_cast<std::size_t>(most * each), 64) : 0);

  InFlight& in_flight = staging.memory->in_flight();
  in_flight.order_after(launch.device, launch.stream);
  try {
    for (std::int64_t first = 0; first < t.n; first += most)
      enqueue_piece(t.piece(first, std::min(most, t.n - first)), *staging.memory, ids, launch);
  } catch (...) {
    in_flight.record(launch.device, launch.stream);  // some of it is on its way
    throw;
  }
  in_flight.record(launch.device, launch.stream);
}

}  // namespace gs::pinned
