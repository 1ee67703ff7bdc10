// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <vector>

#include "bindings/arguments.hpp"
#include "bindings/device_tables.hpp"
#include "schedule.hpp"
#if defined(GS_WITH_CUDA)
#include "device_slots.hpp"
#include "gs/cuda/check.hpp"
#endif

namespace gs::adam {
namespace {

#if defined(GS_WITH_CUDA)

using python::Array;

template <class T>
std::uint8_t* write(std::uint8_t* to, const T* values, std::int64_t n) {
  const std::size_t bytes = sizeof(T) * static_cast<std::size_t>(n);
  std::memcpy(to, values, bytes);
  return to + bytes;
}

void upload_sleeps(const StepPlan& plan, std::int32_t first, const py::object& staged,
                   const py::object& recent, const py::object& past, int device,
                   std::uintptr_t stream) {
  GS_CHECK(plan.sleeps(), "plan must be of a schedule whose rows sleep");
  GS_CHECK(0 <= first && first <= plan.step(), "first must be in [0, ", plan.step(), "], got ",
           first);
  const std::int64_t n_recent = plan.recent_bytes(), n_past = plan.past_bytes(first);
  const std::int64_t begin = plan.past_bytes(0) - n_past;
  std::uint8_t* const from = bytes_of(staged, "staged", n_recent + n_past, -1);
  std::uint8_t* const to_recent = bytes_of(recent, "recent", n_recent, device);
  std::uint8_t* const to_past = bytes_of(past, "past", begin + n_past, device) + begin;
  std::uint8_t* to = from;
  for (int g = 0; g < plan.n_groups(); ++g) {
    const Sleep sleep = plan.before(g);
    to = write(to, sleep.recent, sleep.window + 1);
  }
  for (std::int32_t step = first; step < plan.step(); ++step) {
    for (int g = 0; g < plan.n_groups(); ++g) {
      const Past past_step = plan.series(g).past(step);
      to = write(to, &past_step, 1);
    }
  }
  const python::ReleaseGil nogil;
  const cuda::DeviceGuard guard(device);
  const auto copy = [&](std::uint8_t* there, const std::uint8_t* here, std::int64_t n_bytes) {
    if (n_bytes == 0) return;
    GS_CUDA_TRY(cudaMemcpyAsync(there, here, static_cast<std::size_t>(n_bytes),
                                cudaMemcpyHostToDevice,
                                cuda::StreamView::from_handle(stream).get()));
  };
  copy(to_recent, from, n_recent);
  copy(to_past, from + n_recent, n_past);
}

void device_slots(const StepPlan& plan, const std::vector<std::int32_t>& widths,
                  const std::vector<int>& groups, const py::object& param,
                  const py::object& exp_avg, const py::object& exp_avg_sq, const py::object& slots,
                  const py::object& last_step, const py::object& ids, const py::object& marks,
                  const py::object& grads, const py::object& counts, const py::object& recent,
                  const py::object& past, int device, std::uintptr_t stream) {
  GS_CHECK(widths.size() <= kMostSegments, "params must be at most ", kMostSegments,
           " tensors, got ", widths.size());
  DeviceSlots job{};
  const bool sleeps = !last_step.is_none();
  std::vector<DeviceSleep> group_sleeps(plan.n_groups());
  if (sleeps) group_sleeps = sleeps_of(plan, recent, past, device);
  for (std::size_t k = 0; k < widths.size(); ++k) {
    job.width += widths[k];
    if (widths[k] == 0) continue;
    const Step& step = plan.constants(groups[k]);
    job.tensors[job.n_tensors++] = {job.width, step, group_sleeps[groups[k]]};
  }
  std::int64_t n_slots = python::kAny;
  std::vector<Bytes> written;
  job.param = table_data(param, "param", &n_slots, job.width, device, true, &written);
  job.exp_avg = table_data(exp_avg, "exp_avg", &n_slots, job.width, device, true, &written);
  job.exp_avg_sq =
      table_data(exp_avg_sq, "exp_avg_sq", &n_slots, job.width, device, true, &written);
  job.slots = device_ids_from(slots, "slots", device);
  job.step = plan.step();
  job.steps = !grads.is_none();
  job.has_quads = job.width % 4 == 0 && is_aligned(job.param) && is_aligned(job.exp_avg) &&
                  is_aligned(job.exp_avg_sq);
  if (sleeps) {
    const Array array(last_step, "last_step");
    array.shape({python::kAny}).on(device).contiguous().writable();
    job.last_step = array.data<std::int32_t>();
    written.push_back({"last_step", job.last_step, 4 * array.size(0)});
    job.ids = ids.is(slots) ? job.slots : device_ids_from(ids, "ids", device);
    GS_CHECK(job.ids.size == job.slots.size, "ids must be ", job.slots.size, " as slots, got ",
             job.ids.size);
  }
  if (!marks.is_none()) {
    const Array array(marks, "marks");
    array.shape({job.slots.size}).on(device).contiguous();
    static_assert(sizeof(bool) == 1);
    job.marks = reinterpret_cast<const std::uint8_t*>(array.data<const bool>());
  }
  if (!counts.is_none()) {
    const Array array(counts, "counts");
    array.shape({2}).on(device).contiguous().writable();
    job.counts = array.data<std::int64_t>();
    written.push_back({"counts", job.counts, 2 * 8});
  }
  check_apart(list_of("slots", job.slots), written);
  if (sleeps && !ids.is(slots)) check_apart(list_of("ids", job.ids), written);
  if (job.marks != nullptr) check_apart({"marks", job.marks, job.slots.size}, written);
  if (job.steps) {
    const Array array(grads, "grads");
    array.shape({job.slots.size, job.width}).on(device).row_contiguous();
    job.grads = array.data<float>();
    job.grad_stride = array.row_stride();
    job.has_quads = job.has_quads && is_aligned(job.grads) && job.grad_stride % 4 == 0;
  }
  const python::ReleaseGil nogil;
  launch_device_slots(job, device, cuda::StreamView::from_handle(stream));
}

#else

void upload_sleeps(const StepPlan&, std::int32_t, const py::object&, const py::object&,
                   const py::object&, int, std::uintptr_t) {
  throw_without_cuda();
}

void device_slots(const StepPlan&, const std::vector<std::int32_t>&, const std::vector<int>&,
                  const py::object&, const py::object&, const py::object&, const py::object&,
                  const py::object&, const py::object&, const py::object&, const py::object&,
                  const py::object&, const py::object&, const py::object&, int, std::uintptr_t) {
  throw_without_cuda();
}

#endif

}  // namespace

void register_device_slots(py::module_& module) {
  module.def("upload_sleeps", &upload_sleeps, py::arg("plan"), py::arg("first"), py::arg("staged"),
             py::arg("recent"), py::arg("past"), py::arg("device"), py::arg("stream"));
  module.def("device_slots", &device_slots, py::arg("plan"), py::arg("widths"), py::arg("groups"),
             py::arg("param"), py::arg("exp_avg"), py::arg("exp_avg_sq"), py::arg("slots"),
             py::arg("last_step"), py::arg("ids"), py::arg("marks"), py::arg("grads"),
             py::arg("counts"), py::arg("recent"), py::arg("past"), py::arg("device"),
             py::arg("stream"));
}

}  // namespace gs::adam
