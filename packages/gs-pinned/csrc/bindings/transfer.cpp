// SPDX-License-Identifier: Apache-2.0
#include "transfer.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bindings/register.hpp"
#include "fault.hpp"
#include "gs/error.hpp"
#include "gs/python/array.hpp"
#include "gs/python/release_gil.hpp"
#include "memory.hpp"
#include "row_operations.hpp"

#if defined(GS_WITH_CUDA)
#include "exchange.hpp"
#include "gs/cuda/check.hpp"
#include "staged.hpp"
#include "transfer_cuda.hpp"
#endif

namespace py = pybind11;

namespace gs::pinned {
namespace {

using python::Array;

Element element_named(const std::string& name, const char* argument) {
  if (name == "float32") return Element::kFloat32;
  if (name == "float16") return Element::kFloat16;
  if (name == "uint8") return Element::kUint8;
  if (name == "int32") return Element::kInt32;
  GS_CHECK_AS(KindError, name == "int64", argument,
              " must be float32, float16, uint8, int32 or int64, got ", name);
  return Element::kInt64;
}

// Whole rows: of a table's memory, or of an array in host or device memory.
struct Rows {
  std::shared_ptr<Memory> memory;  // null for an array
  std::shared_ptr<Array> array;    // keeps it alive
  char* data = nullptr;
  std::int64_t rows = 0, row_bytes = 0, stride = 0;
  std::string dtype;
  int device = -1;

  static Rows of_memory(std::shared_ptr<Memory> memory, std::int64_t first_byte, std::int64_t rows,
                        std::int64_t row_bytes, const std::string& dtype) {
    GS_CHECK(first_byte >= 0 && rows >= 0 && row_bytes > 0 &&
                 static_cast<std::size_t>(first_byte + rows * row_bytes) <= memory->size(),
             "rows must lie inside the memory of ", memory->size(), " bytes, got ", rows,
             " rows of ", row_bytes, " bytes from byte ", first_byte);
    Rows result;
    result.data = memory->data() + first_byte;
    result.memory = std::move(memory);
    result.rows = rows;
    result.row_bytes = result.stride = row_bytes;
    result.dtype = dtype;
    return result;
  }

  static Rows of_array(py::handle object, const char* name) {
    Rows result;
    auto array = std::make_shared<Array>(object, name);
    GS_CHECK(array->ndim() >= 1, name, " must have rows, got a scalar");
    array->row_contiguous();
    result.dtype = array->dtype_text();
    (void)element_named(result.dtype, name);
    result.data = array->bytes();
    result.rows = array->size(0);
    result.row_bytes = array->inner_size() * array->item_bytes();
    result.stride = array->row_stride() * array->item_bytes();
    result.device = array->device();
    result.array = std::move(array);
    return result;
  }
};

struct IdArray {
  std::unique_ptr<Array> array;
  Ids ids;

  IdArray(py::handle object, const char* name, std::int64_t n, int device) {
    if (object.is_none()) return;
    array = std::make_unique<Array>(object, name);
    array->shape({n}).contiguous().on(device);
    ids.wide = array->is<std::int64_t>();
    GS_CHECK_AS(KindError, ids.wide || array->is<std::int32_t>(), name,
                " must be int32 or int64, got ", array->dtype_text());
    ids.data = array->bytes();
  }
};

struct Options {
  std::uintptr_t stream;
  int max_blocks;
  bool checked;
  bool copy_engine;  // for dense copies
};

// What a caller calls the ids of a transfer.
struct Names {
  const char* whole = "ids";
  const char* parts = "slots";
};

void check_same_width(const Ids& a, const Ids& b, const char* names = "ids and slots") {
  GS_CHECK_AS(KindError, a.data == nullptr || b.data == nullptr || a.wide == b.wide, names,
              " must be of one type, got int32 and int64");
}

#if defined(GS_WITH_CUDA)

// Where locked chunks end, in bytes from the first row.
std::vector<std::size_t> cuts_of(const Rows& rows) {
  std::vector<std::size_t> cuts;
  if (rows.memory == nullptr) return cuts;
  const auto begin = static_cast<std::size_t>(rows.data - rows.memory->data());
  for (const std::size_t end : rows.memory->chunk_ends())
    if (end > begin) cuts.push_back(end - begin);
  return cuts;
}

// Ids of the device, in the host's memory once the stream has passed; empty where there are none.
std::vector<char> copy_of(const Ids& ids, std::int64_t n, std::uintptr_t stream) {
  std::vector<char> copy(ids.data != nullptr ? static_cast<std::size_t>(n * ids.bytes_each()) : 0);
  if (copy.empty()) return copy;
  GS_CUDA_TRY(cudaMemcpyAsync(copy.data(), ids.data, copy.size(), cudaMemcpyDeviceToHost,
                              cuda::as_stream(stream)));
  GS_CUDA_TRY(cudaStreamSynchronize(cuda::as_stream(stream)));
  return copy;
}

// Ids of the device, looked at on the host: only in checked mode, which may wait for the stream.
void check_device_ids(Ids ids, std::int64_t n, std::int64_t rows, const char* name, bool distinct,
                      std::uintptr_t stream) {
  if (ids.data == nullptr || n == 0) return;
  const std::vector<char> copy = copy_of(ids, n, stream);
  check_ids(Ids{copy.data(), ids.wide}, n, rows, name, distinct);
}

void check_for_device(const Transfer& t, int device, const Options& options, const Names& names) {
  if (!options.checked) return;
  cuda::DeviceGuard guard(device);
  check_device_ids(t.whole_ids, t.n, t.whole_rows, names.whole, !t.to_parts, options.stream);
  check_device_ids(t.parts_ids, t.n, t.parts_rows, names.parts, t.to_parts, options.stream);
}

bool is_visible(const Rows& rows, int device) {
  if (rows.device >= 0 || rows.rows == 0) return true;
  if (rows.memory) return rows.memory->is_device_visible();
  const char* last = rows.data + (rows.rows - 1) * rows.stride + rows.row_bytes - 1;
  return is_device_visible(rows.data, device) && is_device_visible(last, device);
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

// Faults of earlier transfers are the caller's to raise, before the first of several.
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

void run_on_host(const Transfer& t, const Names& names) {
  check_ids(t.whole_ids, t.n, t.whole_rows, names.whole, !t.to_parts);
  check_ids(t.parts_ids, t.n, t.parts_rows, names.parts, t.to_parts);
  transfer_on_host(t);
}

// Some columns of every row of an array.
struct Columns {
  const char* data;
  std::int64_t stride, rows, bytes;

  const char* begin() const { return std::min(data, data + stride * (rows - 1)); }
  const char* end() const { return std::max(data, data + stride * (rows - 1)) + bytes; }
};

// Whether two of them may have memory in common. Not where the columns of one lie between those of
// the other: all rows begin at one place, modulo what both strides are multiples of.
bool may_overlap(const Columns& a, const Columns& b) {
  if (a.rows < 1 || b.rows < 1 || a.begin() >= b.end() || b.begin() >= a.end()) return false;
  const std::int64_t period = std::gcd(a.stride, b.stride);
  if (period == 0) return true;
  const std::int64_t apart = (b.data - a.data) % period;
  const std::int64_t column = apart < 0 ? apart + period : apart;
  return column < a.bytes || column + b.bytes > period;
}

// What a transfer writes, by row.
std::vector<Columns> written_by(const Transfer& t) {
  std::vector<Columns> written;
  for (int k = 0; k < t.n_parts; ++k) {
    const Part& part = t.parts[k];
    written.push_back(
        t.to_parts ? Columns{part.data, part.stride, t.parts_rows, part.bytes}
                   : Columns{t.whole + part.offset, t.whole_stride, t.whole_rows, part.bytes});
  }
  return written;
}

// Ids must not be written while they are read.
void check_ids_apart(const Ids& ids, std::int64_t n, const char* name, const Transfer& t) {
  if (ids.data == nullptr) return;
  const Columns read{static_cast<const char*>(ids.data), ids.bytes_each(), n, ids.bytes_each()};
  for (const Columns& written : written_by(t))
    GS_CHECK(!may_overlap(read, written), name, " must not share memory with what is written");
}

// Rows that are written must be apart.
void check_rows_apart(std::int64_t stride, std::int64_t bytes, std::int64_t rows,
                      const char* name) {
  GS_CHECK(rows <= 1 || std::abs(stride) >= bytes, name,
           " must have rows that do not overlap, got rows of ", bytes, " bytes ", stride,
           " bytes apart");
}

// Memory that a transfer reads must not be what it writes: rows are copied in no order.
void check_apart(const Transfer& t, const char* name) {
  for (int k = 0; k < t.n_parts; ++k) {
    const Part& part = t.parts[k];
    GS_CHECK(!may_overlap({t.whole + part.offset, t.whole_stride, t.whole_rows, part.bytes},
                          {part.data, part.stride, t.parts_rows, part.bytes}),
             name, " must not share memory with the table");
  }
}

using PartArrays = std::vector<std::pair<py::object, std::int64_t>>;  // array, offset in the row

// Holds what a transfer points to, for as long as it is being enqueued or run.
struct Prepared {
  Transfer transfer;
  std::vector<std::unique_ptr<Array>> arrays;
  int device = -1;
};

Prepared prepare(const Rows& rows, const PartArrays& parts, bool to_parts,
                 const char* name = nullptr) {
  if (name == nullptr) name = to_parts ? "out" : "values";
  GS_CHECK(!parts.empty() && parts.size() <= kMaxParts, name, " must be 1 to ", kMaxParts,
           " arrays, got ", parts.size());
  GS_CHECK(rows.row_bytes <= kMaxRowBytes, "table must have rows of at most ", kMaxRowBytes,
           " bytes, got ", rows.row_bytes);
  Prepared prepared;
  Transfer& t = prepared.transfer;
  t.whole = rows.data;
  t.whole_stride = rows.stride;
  t.whole_rows = rows.rows;
  t.row_bytes = rows.row_bytes;
  t.to_parts = to_parts;
  t.element = element_named(rows.dtype, "table");
  if (!to_parts && rows.array) {
    rows.array->writable();
    check_rows_apart(rows.stride, rows.row_bytes, rows.rows, "table");
  }
  for (const auto& [object, offset] : parts) {
    auto array = std::make_unique<Array>(object, name);
    GS_CHECK(array->ndim() >= 1, name, " must have rows, got a scalar");
    array->row_contiguous();
    GS_CHECK_AS(KindError, array->dtype_text() == rows.dtype, name, " must be ", rows.dtype,
                " like the table, got ", array->dtype_text());
    if (to_parts) array->writable();
    if (prepared.arrays.empty()) {
      prepared.device = array->device();
      t.parts_rows = array->size(0);
    }
    array->on(prepared.device);
    GS_CHECK(array->size(0) == t.parts_rows, name, " must have one number of rows, got ",
             t.parts_rows, " and ", array->size(0));
    const std::int64_t bytes = array->inner_size() * array->item_bytes();
    GS_CHECK(offset >= 0 && bytes > 0 && offset + bytes <= rows.row_bytes, name,
             " must have rows that fit into the table's of ", rows.row_bytes / array->item_bytes(),
             " elements, got shape ", array->shape_text());
    const Part part{array->bytes(), array->row_stride() * array->item_bytes(), offset, bytes};
    if (to_parts) {
      check_rows_apart(part.stride, bytes, t.parts_rows, name);
      for (const Columns& other : written_by(t))
        GS_CHECK(!may_overlap({part.data, part.stride, t.parts_rows, bytes}, other), name,
                 " must be arrays that share no memory");
    }
    t.parts[t.n_parts++] = part;
    prepared.arrays.push_back(std::move(array));
  }
  GS_CHECK(
      rows.device < 0 || rows.device == prepared.device,
      "table must be in host memory or on the device of the other arrays, got cuda:", rows.device);
  return prepared;
}

void move_rows(const Rows& rows, const py::object& ids, const PartArrays& parts,
               const py::object& parts_ids, const std::string& parts_ids_name, std::int64_t n,
               bool to_parts, bool add, const Options& options) {
  Prepared prepared = prepare(rows, parts, to_parts);
  Transfer& t = prepared.transfer;
  check_apart(t, to_parts ? "out" : "values");
  const Names names{"ids", parts_ids_name.c_str()};
  const IdArray whole(ids, names.whole, n, prepared.device);
  const IdArray slots(parts_ids, names.parts, n, prepared.device);
  check_same_width(whole.ids, slots.ids, ("ids and " + parts_ids_name).c_str());
  t.whole_ids = whole.ids;
  t.parts_ids = slots.ids;
  t.n = n;
  t.add = add;
  check_ids_apart(t.whole_ids, n, names.whole, t);
  check_ids_apart(t.parts_ids, n, names.parts, t);
  GS_CHECK(ids.ptr() != Py_None || n <= t.whole_rows, "rows must reach ", n, ", got ",
           t.whole_rows);
  GS_CHECK(parts_ids.ptr() != Py_None || n == t.parts_rows, to_parts ? "out" : "values",
           " must have one row per id, got ", t.parts_rows, " rows for ", n, " ids");
  python::ReleaseGil release;
  if (prepared.device < 0) return run_on_host(t, names);
  raise_faults();
  run_on_device(t, rows, prepared.device, options, names);
}

// No row of `out` comes from both.
void check_disjoint(const Ids& load, std::int64_t n_load, const Ids& keep, std::int64_t n_keep,
                    std::int64_t rows) {
  std::vector<bool> taken(static_cast<std::size_t>(rows));
  for (std::int64_t i = 0; i < n_load; ++i)
    taken[static_cast<std::size_t>(load.data != nullptr ? id_at(load, i) : i)] = true;
  for (std::int64_t i = 0; i < n_keep; ++i) {
    const std::int64_t slot = keep.data != nullptr ? id_at(keep, i) : i;
    GS_CHECK(!taken[static_cast<std::size_t>(slot)],
             "load_slots and out_slots must have no slot in common, got ", slot, " in both");
  }
}

#if defined(GS_WITH_CUDA)

void check_disjoint_on_device(const Transfer& loads, const Transfer& keeps, int device,
                              const Options& options) {
  if (!options.checked) return;
  cuda::DeviceGuard guard(device);
  const std::vector<char> load = copy_of(loads.parts_ids, loads.n, options.stream);
  const std::vector<char> keep = copy_of(keeps.parts_ids, keeps.n, options.stream);
  const auto on_host = [](const Ids& ids, const std::vector<char>& copy) {
    return ids.data != nullptr ? Ids{copy.data(), ids.wide} : ids;
  };
  check_disjoint(on_host(loads.parts_ids, load), loads.n, on_host(keeps.parts_ids, keep), keeps.n,
                 keeps.parts_rows);
}

#endif

void gather_retained(const Rows& rows, const py::object& load_ids, const py::object& load_slots,
                     std::int64_t n_load, const py::object& source, const py::object& source_slots,
                     const py::object& out_slots, std::int64_t n_retain, const py::object& out,
                     const Options& options) {
  const Rows kept = Rows::of_array(source, "source");
  GS_CHECK(kept.row_bytes == rows.row_bytes && kept.dtype == rows.dtype,
           "source must have rows of ", rows.row_bytes, " bytes and dtype ", rows.dtype,
           " like the table, got ", kept.row_bytes, " and ", kept.dtype);
  Prepared loads = prepare(rows, {{out, 0}}, true);
  Prepared keeps = prepare(kept, {{out, 0}}, true);
  GS_CHECK(loads.transfer.parts[0].bytes == rows.row_bytes,
           "out must have rows as wide as the table's, got ", loads.transfer.parts[0].bytes,
           " bytes for ", rows.row_bytes);
  const int device = loads.device;
  GS_CHECK(kept.device == device, "source must be where out is");
  const Part& target = loads.transfer.parts[0];
  GS_CHECK(!may_overlap({kept.data, kept.stride, kept.rows, kept.row_bytes},
                        {target.data, target.stride, loads.transfer.parts_rows, target.bytes}),
           "source must not share memory with out: a kept row could be overwritten before it is "
           "read");
  const IdArray ids(load_ids, "load_ids", n_load, device);
  const IdArray slots(load_slots, "load_slots", n_load, device);
  const IdArray from(source_slots, "source_slots", n_retain, device);
  const IdArray to(out_slots, "out_slots", n_retain, device);
  check_apart(loads.transfer, "out");
  const Names load_names{"load_ids", "load_slots"}, keep_names{"source_slots", "out_slots"};
  check_same_width(ids.ids, slots.ids, "load_ids and load_slots");
  check_same_width(ids.ids, from.ids, "load_ids and source_slots");
  check_same_width(from.ids, to.ids, "source_slots and out_slots");
  const std::int64_t n_slots = loads.transfer.parts_rows;
  GS_CHECK(slots.ids.data != nullptr || n_load <= n_slots, "out must have a row for each of the ",
           n_load, " load_ids where load_slots is None, got ", n_slots);
  GS_CHECK(to.ids.data != nullptr || n_retain <= n_slots, "out must have a row for each of the ",
           n_retain, " source_slots where out_slots is None, got ", n_slots);
  loads.transfer.whole_ids = ids.ids;
  loads.transfer.parts_ids = slots.ids;
  loads.transfer.n = n_load;
  keeps.transfer.whole_ids = from.ids;
  keeps.transfer.parts_ids = to.ids;
  keeps.transfer.n = n_retain;
  check_ids_apart(ids.ids, n_load, load_names.whole, loads.transfer);
  check_ids_apart(slots.ids, n_load, load_names.parts, loads.transfer);
  check_ids_apart(from.ids, n_retain, keep_names.whole, loads.transfer);
  check_ids_apart(to.ids, n_retain, keep_names.parts, loads.transfer);
  python::ReleaseGil release;
  if (device < 0) {
    check_ids(ids.ids, n_load, rows.rows, load_names.whole, false);
    check_ids(slots.ids, n_load, loads.transfer.parts_rows, load_names.parts, true);
    check_ids(from.ids, n_retain, kept.rows, keep_names.whole, false);
    check_ids(to.ids, n_retain, keeps.transfer.parts_rows, keep_names.parts, true);
    check_disjoint(slots.ids, n_load, to.ids, n_retain, keeps.transfer.parts_rows);
    transfer_on_host(loads.transfer);
    return transfer_on_host(keeps.transfer);
  }
#if defined(GS_WITH_CUDA)
  const bool visible = is_visible(rows, device);
  raise_faults();
  load_kernels(device);
  check_for_device(loads.transfer, device, options, load_names);
  check_for_device(keeps.transfer, device, options, keep_names);
  check_disjoint_on_device(loads.transfer, keeps.transfer, device, options);
  if (!visible) {
    run_on_device(loads.transfer, rows, device, options, load_names);
    return run_on_device(keeps.transfer, kept, device, options, keep_names);
  }
  // Rows that stay on the device are not held up by the link and need more threads.
  const bool over_link = rows.device < 0 && keeps.transfer.n == 0;
  transfer_together_on_device(
      {loads.transfer, keeps.transfer},
      Launch{device, options.stream, options.max_blocks, fault_record(device), over_link});
  if (rows.memory) rows.memory->in_flight().record(device, options.stream);
#else
  run_on_device(loads.transfer, rows, device, options, load_names);
#endif
}

// No row both leaves and comes.
void check_exchanged(Ids stored, std::int64_t n_stored, Ids loaded, std::int64_t n_loaded) {
  if (stored.data == nullptr || loaded.data == nullptr) return;
  std::vector<std::int64_t> leaves(static_cast<std::size_t>(n_stored));
  for (std::int64_t i = 0; i < n_stored; ++i) leaves[i] = id_at(stored, i);
  std::sort(leaves.begin(), leaves.end());
  for (std::int64_t i = 0; i < n_loaded; ++i)
    GS_CHECK(!std::binary_search(leaves.begin(), leaves.end(), id_at(loaded, i)),
             "stored and loaded must have no row in common, got ", id_at(loaded, i), " in both");
}

// Both ways of one table of an exchange.
struct Exchange {
  Rows rows;
  Prepared load, store;
};

#if defined(GS_WITH_CUDA)

void exchange_on_device(const std::vector<Exchange>& parts, const Exchanged& rows, int device,
                        Options options) {
  for (const Exchange& part : parts) {
    check_for_device(part.store.transfer, device, options, {"stored"});
    check_for_device(part.load.transfer, device, options, {"loaded"});
  }
  if (options.checked) {
    cuda::DeviceGuard guard(device);
    const std::vector<char> stored = copy_of(rows.stored, rows.n_stored, options.stream);
    const std::vector<char> loaded = copy_of(rows.loaded, rows.n_loaded, options.stream);
    check_exchanged(Ids{stored.data(), rows.stored.wide}, rows.n_stored,
                    Ids{loaded.data(), rows.loaded.wide}, rows.n_loaded);
  }
  options.checked = false;
  raise_faults();
  load_kernels(device);
  const bool visible = std::all_of(parts.begin(), parts.end(), [](const Exchange& part) {
    return part.rows.memory->is_device_visible();
  });
  if (!visible) {
    for (const Exchange& part : parts) {
      run_on_device(part.store.transfer, part.rows, device, options, {"stored"});
      run_on_device(part.load.transfer, part.rows, device, options, {"loaded"});
    }
    return;
  }
  std::vector<Swap> swaps;
  for (const Exchange& part : parts) {
    const Transfer& t = part.load.transfer;
    swaps.push_back(Swap{t.whole, t.whole_stride, t.parts[0].data, t.parts[0].stride, t.row_bytes});
  }
  const auto note_use = [&] {
    for (const Exchange& part : parts) part.rows.memory->in_flight().record(device, options.stream);
  };
  try {
    exchange_on_device(
        swaps, rows,
        Launch{device, options.stream, options.max_blocks, fault_record(device), true});
  } catch (...) {
    note_use();  // earlier tables are on their way
    throw;
  }
  note_use();
}

#endif

void exchange_rows(const py::list& tables, const py::list& arrays, const py::object& stored,
                   std::int64_t n_stored, const py::object& loaded, std::int64_t n_loaded,
                   const py::object& slots, const Options& options) {
  std::vector<Exchange> parts;
  for (std::size_t k = 0; k < tables.size(); ++k) {
    const Rows rows = tables[k].cast<Rows>();
    const std::string name = "arrays[" + std::to_string(k) + "]";
    parts.push_back({rows, prepare(rows, {{arrays[k], 0}}, true, name.c_str()),
                     prepare(rows, {{arrays[k], 0}}, false, name.c_str())});
    const Transfer& t = parts[k].load.transfer;
    GS_CHECK(t.parts[0].bytes == t.row_bytes, name, " must have rows of ", t.row_bytes,
             " bytes as its table, got ", t.parts[0].bytes);
    GS_CHECK(parts[k].load.device == parts[0].load.device, name,
             " must be where arrays[0] is, got device ", parts[k].load.device, " and ",
             parts[0].load.device);
    check_apart(t, name.c_str());
    GS_CHECK(t.parts_rows == parts[0].load.transfer.parts_rows, name,
             " must have as many rows as arrays[0], got ", t.parts_rows, " and ",
             parts[0].load.transfer.parts_rows);
  }
  const int device = parts[0].load.device;
  const IdArray out(stored, "stored", n_stored, device), in(loaded, "loaded", n_loaded, device);
  const IdArray places(slots, "slots", n_loaded, device);
  check_same_width(out.ids, places.ids, "stored and slots");
  check_same_width(in.ids, places.ids, "loaded and slots");
  for (Exchange& part : parts) {
    part.load.transfer.whole_ids = in.ids;
    part.load.transfer.parts_ids = places.ids;
    part.load.transfer.n = n_loaded;
    part.store.transfer.whole_ids = out.ids;
    part.store.transfer.parts_ids = places.ids.from(n_loaded - n_stored);
    part.store.transfer.n = n_stored;
    for (const Transfer* t : {&part.load.transfer, &part.store.transfer}) {
      check_ids_apart(in.ids, n_loaded, "loaded", *t);
      check_ids_apart(out.ids, n_stored, "stored", *t);
      check_ids_apart(places.ids, n_loaded, "slots", *t);
    }
  }
  python::ReleaseGil release;
  if (device < 0) {
    for (const Exchange& part : parts)
      for (const Transfer& t : {part.store.transfer, part.load.transfer}) {
        check_ids(t.whole_ids, t.n, t.whole_rows, t.to_parts ? "loaded" : "stored", !t.to_parts);
        check_ids(t.parts_ids, t.n, t.parts_rows, "slots", true);
      }
    check_exchanged(out.ids, n_stored, in.ids, n_loaded);
    for (const Exchange& part : parts) {
      transfer_on_host(part.store.transfer);
      transfer_on_host(part.load.transfer);
    }
    return;
  }
#if defined(GS_WITH_CUDA)
  const Transfer& t = parts[0].load.transfer;
  exchange_on_device(
      parts, Exchanged{n_loaded, n_stored, in.ids, out.ids, places.ids, t.whole_rows, t.parts_rows},
      device, options);
#else
  run_on_device(parts[0].load.transfer, parts[0].rows, device, options, {"loaded"});
#endif
}

// Ids must not lie in the rows that they move.
void check_outside(const Rows& rows, const Ids& ids, std::int64_t n, const char* name) {
  GS_CHECK(!may_overlap({static_cast<const char*>(ids.data), ids.bytes_each(), n, ids.bytes_each()},
                        {rows.data, rows.stride, rows.rows, rows.row_bytes}),
           name, " must not share memory with the table");
}

void keep(const Rows& rows, const py::object& ids, std::int64_t n) {
  const IdArray kept(ids, "ids", n, -1);
  check_outside(rows, kept.ids, n, "ids");
  python::ReleaseGil release;
  check_increasing(kept.ids, n, rows.rows);
  rows.memory->in_flight().wait();
  keep_rows(rows.data, rows.row_bytes, kept.ids, n);
}

void permute(const Rows& rows, const py::object& perm) {
  const IdArray order(perm, "perm", rows.rows, -1);
  check_outside(rows, order.ids, rows.rows, "perm");
  python::ReleaseGil release;
  check_permutation(order.ids, rows.rows);
  rows.memory->in_flight().wait();
  permute_rows(rows.data, rows.row_bytes, order.ids, rows.rows);
}

}  // namespace

void register_transfer(py::module_& module) {
  py::class_<Rows>(module, "Rows", py::module_local())
      .def_static("of_memory", &Rows::of_memory, py::arg("memory"), py::kw_only(),
                  py::arg("first_byte"), py::arg("rows"), py::arg("row_bytes"), py::arg("dtype"))
      .def_static("of_array", &Rows::of_array, py::arg("array"), py::arg("name"))
      .def_readonly("rows", &Rows::rows)
      .def_readonly("row_bytes", &Rows::row_bytes)
      .def_readonly("dtype", &Rows::dtype)
      .def_readonly("device", &Rows::device);
  module.def(
      "move_rows",
      [](const Rows& rows, const py::object& ids, const PartArrays& parts,
         const py::object& parts_ids, const std::string& parts_ids_name, std::int64_t n,
         bool to_parts, bool add, std::uintptr_t stream, int max_blocks, bool checked,
         bool copy_engine) {
        move_rows(rows, ids, parts, parts_ids, parts_ids_name, n, to_parts, add,
                  Options{stream, max_blocks, checked, copy_engine});
      },
      py::arg("rows"), py::arg("ids"), py::arg("parts"), py::arg("parts_ids"), py::kw_only(),
      py::arg("parts_ids_name"), py::arg("n"), py::arg("to_parts"), py::arg("add"),
      py::arg("stream"), py::arg("max_blocks"), py::arg("checked"), py::arg("copy_engine"));
  module.def(
      "gather_retained",
      [](const Rows& rows, const py::object& load_ids, const py::object& load_slots,
         std::int64_t n_load, const py::object& source, const py::object& source_slots,
         const py::object& out_slots, std::int64_t n_retain, const py::object& out,
         std::uintptr_t stream, int max_blocks, bool checked) {
        gather_retained(rows, load_ids, load_slots, n_load, source, source_slots, out_slots,
                        n_retain, out, Options{stream, max_blocks, checked, true});
      },
      py::arg("rows"), py::arg("load_ids"), py::arg("load_slots"), py::arg("n_load"),
      py::arg("source"), py::arg("source_slots"), py::arg("out_slots"), py::arg("n_retain"),
      py::arg("out"), py::kw_only(), py::arg("stream"), py::arg("max_blocks"), py::arg("checked"));
  module.def(
      "exchange_rows",
      [](const py::list& tables, const py::list& arrays, const py::object& stored,
         std::int64_t n_stored, const py::object& loaded, std::int64_t n_loaded,
         const py::object& slots, std::uintptr_t stream, int max_blocks, bool checked) {
        exchange_rows(tables, arrays, stored, n_stored, loaded, n_loaded, slots,
                      Options{stream, max_blocks, checked, true});
      },
      py::arg("tables"), py::arg("arrays"), py::arg("stored"), py::arg("n_stored"),
      py::arg("loaded"), py::arg("n_loaded"), py::arg("slots"), py::kw_only(), py::arg("stream"),
      py::arg("max_blocks"), py::arg("checked"));
  module.def("keep_rows", &keep, py::arg("rows"), py::arg("ids"), py::kw_only(), py::arg("n"));
  module.def("permute_rows", &permute, py::arg("rows"), py::arg("perm"));
  module.def("raise_faults", &raise_faults);
}

}  // namespace gs::pinned
