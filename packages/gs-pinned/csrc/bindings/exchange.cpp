// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/register.hpp"
#include "bindings/row_arguments.hpp"
#include "bindings/run_transfer.hpp"
#include "gs/error.hpp"
#include "gs/python/gil.hpp"
#include "overlap.hpp"
#include "transfer.hpp"

#if defined(GS_WITH_CUDA)
#include "exchange.hpp"
#include "fault.hpp"
#include "gs/cuda/check.hpp"
#include "memory.hpp"
#include "transfer_cuda.hpp"
#endif

namespace py = pybind11;

namespace gs::pinned {
namespace {

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
  std::vector<std::pair<std::string, Columns>> named;
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
    const Part& part = t.parts[0];
    named.emplace_back("tables[" + std::to_string(k) + "]", rows.columns());
    named.emplace_back(name, Columns{part.data, part.stride, t.parts_rows, part.bytes});
    GS_CHECK(t.parts_rows == parts[0].load.transfer.parts_rows, name,
             " must have as many rows as arrays[0], got ", t.parts_rows, " and ",
             parts[0].load.transfer.parts_rows);
  }
  check_all_apart(named);
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

}  // namespace

void register_exchange(py::module_& module) {
  module.def(
      "exchange_rows",
      [](const py::list& tables, const py::list& arrays, const py::object& stored,
         std::int64_t n_stored, const py::object& loaded, std::int64_t n_loaded,
         const py::object& slots, std::uintptr_t stream, int max_blocks, bool checked) {
        exchange_rows(tables, arrays, stored, n_stored, loaded, n_loaded, slots,
                      Options{cuda::StreamView::from_handle(stream), max_blocks, checked, true});
      },
      py::arg("tables"), py::arg("arrays"), py::arg("stored"), py::arg("n_stored"),
      py::arg("loaded"), py::arg("n_loaded"), py::arg("slots"), py::kw_only(), py::arg("stream"),
      py::arg("max_blocks"), py::arg("checked"));
}

}  // namespace gs::pinned
