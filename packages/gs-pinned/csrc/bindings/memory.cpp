// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "bindings/register.hpp"
#include "device.hpp"
#include "gs/error.hpp"
#include "gs/python/gil.hpp"
#include "host_memory.hpp"

namespace py = pybind11;

namespace gs::pinned {
namespace {

Lock lock_named(const std::string& name) {
  if (name == "none") return Lock::kNone;
  if (name == "cuda") return Lock::kCuda;
  GS_CHECK(name == "mlock", "lock must be none, cuda or mlock, got ", name);
  return Lock::kMlock;
}

}  // namespace

void register_memory(py::module_& module) {
  module.def("device_problem", &device_problem, py::call_guard<python::ReleaseGil>());
  module.def(
      "device_of_stream",
      [](std::uintptr_t stream, int otherwise) {
        return device_of_stream(cuda::StreamView::from_handle(stream), otherwise);
      },
      py::arg("stream"), py::arg("otherwise"));
  module.def("device_count", &device_count, py::call_guard<python::ReleaseGil>());
  module.def("driver_version", &driver_version, py::call_guard<python::ReleaseGil>());
  module.def("locked_bytes", &Memory::locked_total);
  module.def("physical_bytes", &physical_bytes);
  module.def("available_bytes", &available_bytes, py::arg("root") = "",
             "Bytes of host memory that can be taken now without swapping, within the limits of "
             "this process's\ncontrol groups (version 2). `root` is where /proc and /sys are.");

  py::class_<Memory, std::shared_ptr<Memory>>(module, "Memory", py::buffer_protocol(),
                                              py::module_local())
      .def(py::init([](std::size_t reserved, const std::string& lock, int device) {
             return share(new Memory(reserved, lock_named(lock), device));
           }),
           py::arg("reserved"), py::kw_only(), py::arg("lock"), py::arg("device") = 0)
      .def("grow", &Memory::grow, py::arg("bytes"), py::kw_only(), py::arg("may_be_pageable"),
           py::call_guard<python::ReleaseGil>())
      .def("wait_idle", &Memory::wait_idle, py::call_guard<python::ReleaseGil>())
      .def_property_readonly("is_busy",
                             [](Memory& memory) {
                               python::ReleaseGil release;
                               return memory.in_flight().busy();
                             })
      .def_property_readonly("is_inherited", &Memory::is_inherited)
      .def_property_readonly("locked_size", &Memory::locked_size)
      .def_property_readonly("is_usable", &Memory::is_usable)
      .def_property_readonly("is_locked", &Memory::is_locked)
      .def_property_readonly("is_device_visible", &Memory::is_device_visible)
      .def_property_readonly("refusal", &Memory::refusal)
      .def_property_readonly("size", &Memory::size)
      .def_property_readonly("reserved", &Memory::reserved)
      .def_property_readonly("chunk_ends",
                             [](const Memory& memory) {
                               python::ReleaseGil release;  // grow() may hold it for long
                               return memory.chunk_ends();
                             })
      .def_property_readonly(
          "address",
          [](const Memory& memory) { return reinterpret_cast<std::uintptr_t>(memory.data()); })
      .def_buffer([](Memory& memory) {
        return py::buffer_info(reinterpret_cast<unsigned char*>(memory.data()),
                               static_cast<py::ssize_t>(memory.size()));
      });
}

}  // namespace gs::pinned
