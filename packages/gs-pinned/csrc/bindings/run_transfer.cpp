// SPDX-License-Identifier: Apache-2.0
#include "bindings/run_transfer.hpp"

#include <cstddef>

#include "gs/error.hpp"

#if defined(GS_WITH_CUDA)
#include "fault.hpp"
#include "gs/cuda/check.hpp"
#include "memory.hpp"
#include "staged.hpp"
#include "transfer_cuda.hpp"
#endif

namespace gs::pinned {

void run_on_host(const Transfer& t, const Names& names) {
  check_ids(t.whole_ids, t.n, t.whole_rows, names.whole, !t.to_parts);
  check_ids(t.parts_ids, t.n, t.parts_rows, names.parts, t.to_parts);
  transfer_on_host(t);
}

#if defined(GS_WITH_CUDA)

namespace {

// Where locked chunks end, in bytes from the first row.
std::vector<std::size_t> cuts_of(const Rows& rows) {
  std::vector<std::size_t> cuts;
  if (rows.memory == nullptr) return cuts;
  const auto begin = static_cast<std::size_t>(rows.data - rows.memory->data());
  for (const std::size_t end : rows.memory->chunk_ends())
    if (end > begin) cuts.push_back(end - begin);
  return cuts;
}

void check_device_ids(Ids ids, std::int64_t n, std::int64_t rows, const char* name, bool distinct,
                      cuda::StreamView stream) {
  if (ids.data == nullptr || n == 0) return;
  const std::vector<char> copy = copy_of(ids, n, stream);
  check_ids(Ids{copy.data(), ids.wide}, n, rows, name, distinct);
}

void enqueue(const Transfer& t, const Rows& rows, const Options& options, const Launch& launch) {
  if (!is_visible(rows, launch.device)) {
    GS_CHECK(rows.memory != nullptr,
             "table must be page-locked where the other arrays are on a CUDA device, got a "
             "pageable array; use a gs_pinned.Table or torch's pin_memory()");
    return transfer_staged(t, launch);
  }
  // Of an array in host memory nobody knows whether it is locked in one piece, which a copy engine
  // must not leave.
  const bool may_copy = options.copy_engine && (rows.memory || rows.device >= 0);
  if (is_dense_copy(t) && (may_copy || (rows.memory && t.row_bytes % kWidestAccess != 0)))
    copy_dense(t, cuts_of(rows), launch);
  else
    transfer_on_device(t, launch);
}

}  // namespace

bool is_visible(const Rows& rows, int device) {
  if (rows.device >= 0 || rows.rows == 0) return true;
  if (rows.memory) return rows.memory->is_device_visible();
  const char* last = rows.data + (rows.rows - 1) * rows.stride + rows.row_bytes - 1;
  return is_device_visible(rows.data, device) && is_device_visible(last, device);
}

std::vector<char> copy_of(const Ids& ids, std::int64_t n, cuda::StreamView stream) {
  std::vector<char> copy(ids.data != nullptr ? static_cast<std::size_t>(n * ids.bytes_each()) : 0);
  if (copy.empty()) return copy;
  GS_CUDA_TRY(
      cudaMemcpyAsync(copy.data(), ids.data, copy.size(), cudaMemcpyDeviceToHost, stream.get()));
  GS_CUDA_TRY(cudaStreamSynchronize(stream.get()));
  return copy;
}

void check_for_device(const Transfer& t, int device, const Options& options, const Names& names) {
  if (!options.checked) return;
  cuda::DeviceGuard guard(device);
  check_device_ids(t.whole_ids, t.n, t.whole_rows, names.whole, !t.to_parts, options.stream);
  check_device_ids(t.parts_ids, t.n, t.parts_rows, names.parts, t.to_parts, options.stream);
}

void run_on_device(const Transfer& t, const Rows& rows, int device, const Options& options,
                   const Names& names) {
  load_kernels(device);
  const Launch launch{device, options.stream, options.max_blocks, fault_record(device),
                      rows.device < 0};
  check_for_device(t, device, options, names);
  const auto note_use = [&] {
    if (rows.memory) rows.memory->in_flight().record(device, options.stream);
  };
  try {
    enqueue(t, rows, options, launch);
  } catch (...) {
    note_use();  // some of it may be on its way
    throw;
  }
  note_use();
}

#else

void run_on_device(const Transfer&, const Rows&, int, const Options&, const Names&) {
  GS_CHECK_AS(CudaError, false, "arrays must be on the CPU: gs-pinned was built without CUDA");
}

#endif

}  // namespace gs::pinned
