// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/register.hpp"
#include "gs/python/gil.hpp"
#include "store/block_store.hpp"
#include "store/crc32c.hpp"
#include "store/errors.hpp"

namespace py = pybind11;

namespace gs::pinned {
namespace {

using store::BlockStore;

// Seconds between two looks at the keyboard.
constexpr double kPatience = 0.05;

using Planes = std::vector<std::optional<py::buffer>>;  // bytes of each plane, or none
using Numbers = std::vector<std::uint32_t>;
using Firsts = std::vector<std::uint64_t>;

// A child process leaves the parent's object alone.
std::shared_ptr<BlockStore> kept_by_its_process(BlockStore* made) {
  return {made, [](BlockStore* last) {
            if (!last->is_inherited()) share(last).reset();
          }};
}

// A call that is not done, and the arrays that it uses. The arrays stay until it is done.
class PendingBlocks {
 public:
  PendingBlocks(std::shared_ptr<BlockStore> owner, std::shared_ptr<store::Ticket> ticket,
                std::vector<py::buffer_info> arrays)
      : owner_(std::move(owner)), ticket_(std::move(ticket)), arrays_(std::move(arrays)) {}
  PendingBlocks(const PendingBlocks&) = delete;
  PendingBlocks& operator=(const PendingBlocks&) = delete;
  ~PendingBlocks() {
    if (owner_->is_inherited()) return;
    python::ReleaseGil release;
    ticket_->wait();
  }

  bool is_done() { return ticket_->wait(0); }

  bool wait(double timeout_s) {
    for (double left = timeout_s;; left -= kPatience) {
      bool done = false;
      {
        python::ReleaseGil release;
        done = ticket_->wait(timeout_s < 0 ? kPatience : std::clamp(left, 0.0, kPatience));
      }
      if (done) break;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      if (timeout_s >= 0 && left <= kPatience) return false;
    }
    ticket_->raise();
    return true;
  }

 private:
  const std::shared_ptr<BlockStore> owner_;
  const std::shared_ptr<store::Ticket> ticket_;
  std::vector<py::buffer_info> arrays_;
};

// Where the rows of each block begin in the arrays, and how many rows the arrays have.
struct Extent {
  Firsts firsts;
  std::uint64_t rows = 0;
};

// One block after the other, and nothing else.
Extent packed(const Numbers& counts) {
  Extent extent;
  for (const std::uint32_t count : counts) {
    extent.firsts.push_back(extent.rows);
    extent.rows += count;
  }
  return extent;
}

// Where the caller says, within arrays of other rows, too.
Extent placed(const BlockStore& owner, const Numbers& counts, const Planes& planes, Firsts at) {
  const auto& layout = owner.layout().planes;
  GS_CHECK(at.size() == counts.size(), "at must be one a block, got ", at.size(), " for ",
           counts.size(), " blocks");
  Extent extent;
  for (std::size_t i = 0; i < std::min(planes.size(), layout.size()); ++i)
    if (planes[i])
      extent.rows = static_cast<std::uint64_t>(planes[i]->request().size) / layout[i].row_bytes;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> runs;
  for (std::size_t i = 0; i < at.size(); ++i) {
    GS_CHECK(at[i] <= extent.rows && counts[i] <= extent.rows - at[i], "at must leave room for ",
             counts[i], " rows of ", extent.rows, ", got ", at[i]);
    runs.emplace_back(at[i], at[i] + counts[i]);
  }
  std::sort(runs.begin(), runs.end());
  for (std::size_t i = 1; i < runs.size(); ++i)
    GS_CHECK(runs[i - 1].second <= runs[i].first, "at must not give one row to two blocks, got ",
             runs[i - 1].first, " and ", runs[i].first);
  extent.firsts = std::move(at);
  return extent;
}

Extent extent_of(const BlockStore& owner, const Numbers& counts, const Planes& planes,
                 std::optional<Firsts> at) {
  return at ? placed(owner, counts, planes, *std::move(at)) : packed(counts);
}

template <class Byte>
std::vector<Byte*> addresses(const BlockStore& owner, const Planes& planes, std::uint64_t rows,
                             bool writable, std::vector<py::buffer_info>* arrays) {
  const auto& layout = owner.layout().planes;
  GS_CHECK(planes.size() == layout.size(), "planes must be ", layout.size(), ", got ",
           planes.size());
  std::vector<Byte*> result(planes.size(), nullptr);
  for (std::size_t i = 0; i < planes.size(); ++i) {
    if (!planes[i]) {
      GS_CHECK(writable, "plane ", layout[i].name, " must be given");
      continue;
    }
    arrays->push_back(planes[i]->request(writable));
    const py::buffer_info& array = arrays->back();
    GS_CHECK(array.itemsize == 1 && array.ndim == 1 &&
                 static_cast<std::uint64_t>(array.size) == rows * layout[i].row_bytes &&
                 (array.size <= 1 || array.strides[0] == 1),
             "plane ", layout[i].name, " must have ", rows * layout[i].row_bytes, " bytes, got ",
             array.size);
    result[i] = static_cast<Byte*>(array.ptr);
  }
  return result;
}

std::unique_ptr<PendingBlocks> write(const std::shared_ptr<BlockStore>& owner,
                                     const Numbers& blocks, const Numbers& counts,
                                     const Planes& planes, std::uint32_t step,
                                     std::optional<Firsts> at) {
  GS_CHECK(blocks.size() == counts.size(), "counts must be one a block, got ", counts.size(),
           " for ", blocks.size(), " blocks");
  const auto [firsts, rows] = extent_of(*owner, counts, planes, std::move(at));
  std::vector<py::buffer_info> arrays;
  const std::vector<const char*> from = addresses<const char>(*owner, planes, rows, false, &arrays);
  std::shared_ptr<store::Ticket> ticket;
  {
    python::ReleaseGil release;
    ticket = owner->write(blocks, counts, firsts, from, step);
  }
  return std::make_unique<PendingBlocks>(owner, std::move(ticket), std::move(arrays));
}

std::unique_ptr<PendingBlocks> read(const std::shared_ptr<BlockStore>& owner, const Numbers& blocks,
                                    const Numbers& counts, const Planes& planes,
                                    std::optional<Firsts> at) {
  GS_CHECK(blocks.size() == counts.size(), "counts must be one a block, got ", counts.size(),
           " for ", blocks.size(), " blocks");
  const auto [firsts, rows] = extent_of(*owner, counts, planes, std::move(at));
  std::vector<py::buffer_info> arrays;
  const std::vector<char*> to = addresses<char>(*owner, planes, rows, true, &arrays);
  std::shared_ptr<store::Ticket> ticket;
  {
    python::ReleaseGil release;
    ticket = owner->read(blocks, counts, firsts, to);
  }
  return std::make_unique<PendingBlocks>(owner, std::move(ticket), std::move(arrays));
}

// A Python function that hears of each call of the system, on the thread that makes the call.
store::FileCalls calls_with(const py::object& hook) {
  if (hook.is_none()) return store::FileCalls();
  const std::shared_ptr<PyObject> kept(hook.inc_ref().ptr(), [](PyObject* object) {
    python::AcquireGil acquire;
    Py_DECREF(object);
  });
  return store::FileCalls([kept](const store::FileCall& call) -> long {
    python::AcquireGil acquire;
    try {
      py::object data = py::int_(call.bytes);
      if (call.data != nullptr) data = py::bytes(static_cast<const char*>(call.data), call.bytes);
      return py::reinterpret_borrow<py::object>(kept.get())(call.name, call.path, call.from,
                                                            call.offset, data)
          .cast<long>();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("a hook of the store");
      return -EIO;
    }
  });
}

using PlaneTuple = std::tuple<std::string, std::string, std::uint32_t, std::uint32_t, bool>;

store::Layout layout_of(const py::bytes& identity, std::uint32_t block_rows,
                        std::uint32_t segment_pages, const std::vector<PlaneTuple>& planes) {
  store::Layout layout;
  const std::string bytes = identity;
  GS_CHECK(bytes.size() == layout.identity.size(), "identity must have 16 bytes");
  std::memcpy(layout.identity.data(), bytes.data(), bytes.size());
  layout.block_rows = block_rows;
  layout.segment_pages = segment_pages;
  GS_CHECK(!planes.empty() && planes.size() <= store::kMostPlanes, "planes must be 1 to ",
           store::kMostPlanes, ", got ", planes.size());
  for (const auto& [name, dtype, columns, row_bytes, is_head] : planes)
    layout.planes.push_back({name, dtype, columns, row_bytes, is_head});
  return layout;
}

py::dict stats_of(const BlockStore& owner) {
  store::Stats stats;
  {
    python::ReleaseGil release;
    stats = owner.stats();
  }
  py::dict result;
  result["blocks"] = stats.blocks;
  result["rows"] = stats.rows;
  result["live_bytes"] = stats.live_bytes;
  result["dead_bytes"] = stats.dead_bytes;
  result["free_bytes"] = stats.free_bytes;
  result["disk_bytes"] = stats.disk_bytes;
  result["records_read"] = stats.records_read;
  result["bytes_read"] = stats.bytes_read;
  result["records_written"] = stats.records_written;
  result["bytes_written"] = stats.bytes_written;
  return result;
}

void register_store_errors(py::module_& module) {
  static PyObject *corrupt = nullptr, *version = nullptr, *read_only = nullptr;
  corrupt = PyErr_NewExceptionWithDoc(
      "gs_pinned._core.StoreCorruptError",
      "What lies on disk is not what the store wrote; the message names block, file and step.",
      PyExc_RuntimeError, nullptr);
  version = PyErr_NewExceptionWithDoc(
      "gs_pinned._core.StoreVersionError",
      "The store is of another version of the format; the message names both.", corrupt, nullptr);
  read_only = PyErr_NewExceptionWithDoc(
      "gs_pinned._core.StoreReadOnlyError",
      "The store cannot be written; the message gives the reason.", PyExc_RuntimeError, nullptr);
  module.attr("StoreCorruptError") = py::handle(corrupt);
  module.attr("StoreVersionError") = py::handle(version);
  module.attr("StoreReadOnlyError") = py::handle(read_only);
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const store::FileError& error) {
      // With an errno, OSError makes the subclass: FileNotFoundError and so on.
      const py::object made =
          py::handle(PyExc_OSError)(error.code, std::string(error.what()), error.path);
      PyErr_SetObject(py::type::handle_of(made).ptr(), made.ptr());
    } catch (const store::VersionError& error) {
      PyErr_SetString(version, error.what());
    } catch (const store::CorruptError& error) {
      PyErr_SetString(corrupt, error.what());
    } catch (const store::ReadOnlyError& error) {
      PyErr_SetString(read_only, error.what());
    } catch (const store::ClosedError& error) {
      PyErr_SetString(py::module_::import("gs_pinned.errors").attr("ClosedError").ptr(),
                      error.what());
    }
  });
}

}  // namespace

void register_store(py::module_& module) {
  register_store_errors(module);
  module.attr("STORE_PAGE") = store::kPage;
  module.attr("MOST_BLOCK_ROWS") = store::kMostBlockRows;
  module.attr("MOST_BLOCKS") = store::kMostBlocks;
  const auto crc = [](const py::bytes& data, std::uint32_t before, bool by_table) {
    const std::string_view bytes = data;
    return by_table ? store::crc32c_by_table(bytes.data(), bytes.size(), before)
                    : store::crc32c(bytes.data(), bytes.size(), before);
  };
  module.def("crc32c", crc, py::arg("data"), py::arg("before") = 0, py::kw_only(),
             py::arg("by_table") = false);
  py::class_<PendingBlocks>(module, "PendingBlocks", py::module_local())
      .def_property_readonly("is_done", &PendingBlocks::is_done)
      .def("wait", &PendingBlocks::wait, py::arg("timeout_s"));
  py::class_<BlockStore, std::shared_ptr<BlockStore>>(module, "BlockStore", py::module_local())
      .def_static(
          "create",
          [](const std::string& path, const py::bytes& identity, std::uint32_t block_rows,
             std::uint32_t segment_pages, const std::vector<PlaneTuple>& planes,
             const py::object& hook) {
            const store::Layout layout = layout_of(identity, block_rows, segment_pages, planes);
            const store::FileCalls calls = calls_with(hook);
            python::ReleaseGil release;
            BlockStore::create(calls, path, layout);
          },
          py::arg("path"), py::kw_only(), py::arg("identity"), py::arg("block_rows"),
          py::arg("segment_pages"), py::arg("planes"), py::arg("hook"))
      .def(py::init([](const std::string& path, std::int64_t snapshot, bool read_only, int threads,
                       const py::object& hook) {
             store::FileCalls calls = calls_with(hook);
             python::ReleaseGil release;
             return kept_by_its_process(
                 new BlockStore(std::move(calls), path, {snapshot, read_only, threads}));
           }),
           py::arg("path"), py::kw_only(), py::arg("snapshot"), py::arg("read_only"),
           py::arg("threads"), py::arg("hook"))
      .def("write", &write, py::arg("blocks"), py::arg("counts"), py::arg("planes"),
           py::arg("step"), py::arg("at") = py::none())
      .def("read", &read, py::arg("blocks"), py::arg("counts"), py::arg("planes"),
           py::arg("at") = py::none())
      .def(
          "snapshot",
          [](BlockStore& owner, const py::bytes& state, std::uint32_t keep) {
            const std::string_view bytes = state;
            python::ReleaseGil release;
            return owner.snapshot(bytes, keep);
          },
          py::arg("state"), py::arg("keep"))
      .def("close", &BlockStore::close, py::call_guard<python::ReleaseGil>())
      .def("counts", &BlockStore::counts, py::arg("blocks"), py::call_guard<python::ReleaseGil>())
      .def("verify", &BlockStore::verify, py::arg("blocks"), py::call_guard<python::ReleaseGil>())
      .def_property_readonly("blocks",
                             [](const BlockStore& owner) {
                               python::ReleaseGil release;
                               return owner.blocks();
                             })
      .def_property_readonly("snapshots",
                             [](const BlockStore& owner) {
                               python::ReleaseGil release;
                               return owner.snapshots();
                             })
      .def_property_readonly("is_read_only",
                             [](const BlockStore& owner) {
                               python::ReleaseGil release;
                               return owner.is_read_only();
                             })
      .def_property_readonly("is_direct", &BlockStore::is_direct)
      .def_property_readonly("block_rows",
                             [](const BlockStore& owner) { return owner.layout().block_rows; })
      .def_property_readonly("planes",
                             [](const BlockStore& owner) {
                               std::vector<PlaneTuple> planes;
                               for (const store::Plane& plane : owner.layout().planes)
                                 planes.emplace_back(plane.name, plane.dtype, plane.columns,
                                                     plane.row_bytes, plane.is_head);
                               return planes;
                             })
      .def_property_readonly("state",
                             [](const BlockStore& owner) {
                               std::string state;
                               {
                                 python::ReleaseGil release;
                                 state = owner.state();
                               }
                               return py::bytes(state);
                             })
      .def("forget_state", &BlockStore::forget_state, py::call_guard<python::ReleaseGil>())
      .def_property_readonly("opened_snapshot", &BlockStore::opened_snapshot)
      .def_property_readonly("damaged", &BlockStore::damaged)
      .def_property_readonly("stats", &stats_of);
}

}  // namespace gs::pinned
