// SPDX-License-Identifier: Apache-2.0
#include "transfer.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bindings/register.hpp"
#include "bindings/row_arguments.hpp"
#include "bindings/run_transfer.hpp"
#include "fault.hpp"
#include "gs/error.hpp"
#include "gs/python/gil.hpp"
#include "memory.hpp"
#include "overlap.hpp"
#include "row_operations.hpp"

#if defined(GS_WITH_CUDA)
#include "gs/cuda/check.hpp"
#include "transfer_cuda.hpp"
#endif

namespace py = pybind11;

namespace gs::pinned {
namespace {

void move_rows(const Rows& rows, const py::object& ids, const PartArrays& parts,
               const py::object& parts_ids, const std::string& parts_ids_name, std::int64_t n,
               bool to_parts, bool add, const Options& options) {
  Prepared prepared = prepare(rows, parts, to_parts);
  Transfer& t = prepared.transfer;
  check_table_apart(t, to_parts ? "out" : "values");
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

// What move_rows answers to values for all of the rows, before they have memory.
void check_values(const Rows& rows, const PartArrays& parts) {
  check_table_apart(prepare(rows, parts, false).transfer, "values");
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
  GS_CHECK(!may_overlap(kept.columns(),
                        {target.data, target.stride, loads.transfer.parts_rows, target.bytes}),
           "source must not share memory with out: a kept row could be overwritten before it is "
           "read");
  const IdArray ids(load_ids, "load_ids", n_load, device);
  const IdArray slots(load_slots, "load_slots", n_load, device);
  const IdArray from(source_slots, "source_slots", n_retain, device);
  const IdArray to(out_slots, "out_slots", n_retain, device);
  check_table_apart(loads.transfer, "out");
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

// Ids must not lie in the rows that they move.
void check_outside(const Rows& rows, const Ids& ids, std::int64_t n, const char* name) {
  GS_CHECK(!may_overlap(Columns::of(ids, n), rows.columns()), name,
           " must not share memory with the table");
}

// Calls `done` before it returns: right behind it Ctrl-C may be raised, when rows have moved.
void keep(const Rows& rows, const py::object& ids, std::int64_t n, const py::function& done) {
  constexpr const char* kName = "mask_or_ids";
  const IdArray kept(ids, kName, n, -1);
  check_outside(rows, kept.ids, n, kName);
  {
    python::ReleaseGil release;
    check_increasing(kept.ids, n, rows.rows, kName);
    rows.memory->wait_idle();
    keep_rows(rows.data, rows.row_bytes, kept.ids, n);
  }
  done();
}

void permute(const Rows& rows, const py::object& perm) {
  const IdArray order(perm, "perm", rows.rows, -1);
  check_outside(rows, order.ids, rows.rows, "perm");
  python::ReleaseGil release;
  check_permutation(order.ids, rows.rows);
  rows.memory->wait_idle();
  permute_rows(rows.data, rows.row_bytes, order.ids, rows.rows);
}

}  // namespace

void register_transfer(py::module_& module) {
  py::class_<Rows>(module, "Rows", py::module_local())
      .def_static("of_memory", &Rows::of_memory, py::arg("memory"), py::kw_only(),
                  py::arg("first_byte"), py::arg("rows"), py::arg("row_bytes"), py::arg("dtype"),
                  py::arg("to_come") = false)
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
                  Options{cuda::StreamView::from_handle(stream), max_blocks, checked, copy_engine});
      },
      py::arg("rows"), py::arg("ids"), py::arg("parts"), py::arg("parts_ids"), py::kw_only(),
      py::arg("parts_ids_name"), py::arg("n"), py::arg("to_parts"), py::arg("add"),
      py::arg("stream"), py::arg("max_blocks"), py::arg("checked"), py::arg("copy_engine"));
  module.def("check_values", &check_values, py::arg("rows"), py::arg("parts"));
  module.def(
      "gather_retained",
      [](const Rows& rows, const py::object& load_ids, const py::object& load_slots,
         std::int64_t n_load, const py::object& source, const py::object& source_slots,
         const py::object& out_slots, std::int64_t n_retain, const py::object& out,
         std::uintptr_t stream, int max_blocks, bool checked) {
        gather_retained(rows, load_ids, load_slots, n_load, source, source_slots, out_slots,
                        n_retain, out,
                        Options{cuda::StreamView::from_handle(stream), max_blocks, checked, true});
      },
      py::arg("rows"), py::arg("load_ids"), py::arg("load_slots"), py::arg("n_load"),
      py::arg("source"), py::arg("source_slots"), py::arg("out_slots"), py::arg("n_retain"),
      py::arg("out"), py::kw_only(), py::arg("stream"), py::arg("max_blocks"), py::arg("checked"));
  module.def("keep_rows", &keep, py::arg("rows"), py::arg("ids"), py::kw_only(), py::arg("n"),
             py::arg("done"));
  module.def("permute_rows", &permute, py::arg("rows"), py::arg("perm"));
  module.def("raise_faults", &raise_faults);
}

}  // namespace gs::pinned
