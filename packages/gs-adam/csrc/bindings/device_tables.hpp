// SPDX-License-Identifier: Apache-2.0
// Tables of slots and lists of rows in device memory, as calls on them take both.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "bindings/arguments.hpp"
#include "schedule.hpp"
#if defined(GS_WITH_CUDA)
#include "device_slots.hpp"
#endif

namespace gs::adam {

[[noreturn]] void throw_without_cuda();

#if defined(GS_WITH_CUDA)

/// Some bytes of an argument.
struct Bytes {
  const char* name;
  const void* begin;
  std::int64_t count;

  const char* end() const { return static_cast<const char*>(begin) + count; }
};

/// Throws where what is read shares memory with what is written.
void check_apart(const Bytes& read, const std::vector<Bytes>& written);

Bytes list_of(const char* name, const Ids& ids);

/// A table of as many slots as the ones before; kAny of the first.
float* table_data(const py::object& object, const char* name, std::int64_t* n_slots,
                  std::int64_t width, int device, bool is_written, std::vector<Bytes>* tables);

std::uint8_t* bytes_of(const py::object& object, const char* name, std::int64_t least, int device);

/// Of every group, what rows read that have slept until the step before the plan's.
std::vector<DeviceSleep> sleeps_of(const StepPlan& plan, const py::object& recent,
                                   const py::object& past, int device);

#endif

}  // namespace gs::adam
