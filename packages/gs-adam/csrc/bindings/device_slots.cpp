// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <vector>

#include "bindings/arguments.hpp"
#include "schedule.hpp"
#if defined(GS_WITH_CUDA)
#include "device_slots.hpp"
#endif

namespace gs::adam {
namespace {

#if defined(GS_WITH_CUDA)

using python::Array;

float* table_data(const py::object& object, const char* name, std::int64_t width, int device) {
  const Array array(object, name);
  array.shape({python::kAny, width}).on(device).contiguous().writable();
  return array.data<float>();
}

const std::uint8_t* bytes_of(const py::object& object, const char* name, std::int64_t least,
                             int device) {
  const Array array(object, name);
  array.shape({python::kAny}).on(device).contiguous();
  GS_CHECK(array.size(0) >= least, name, " must have ", least, " bytes, got ", array.size(0));
  return array.data<std::uint8_t>();
}

/// Of every group, what rows read that have slept until the step before the plan's.
std::vector<DeviceSleep> sleeps_of(const StepPlan& plan, const py::object& recent,
                                   const py::object& past, int device) {
  std::vector<DeviceSleep> sleeps(plan.n_groups());
  std::int64_t entries = 0;
  for (int g = 0; g < plan.n_groups(); ++g) entries += plan.before(g).window + 1;
  const std::int64_t steps = static_cast<std::int64_t>(plan.step()) * plan.n_groups();
  const auto* catch_ups = reinterpret_cast<const CatchUp*>(
      bytes_of(recent, "recent", entries * static_cast<std::int64_t>(sizeof(CatchUp)), device));
  const auto* pasts = reinterpret_cast<const Past*>(
      bytes_of(past, "past", steps * static_cast<std::int64_t>(sizeof(Past)), device));
  for (int g = 0; g < plan.n_groups(); ++g) {
    const Series& series = plan.series(g);
    DeviceSleep& sleep = sleeps[g];
    sleep.recent = catch_ups;
    sleep.past = pasts + g;
    sleep.n_groups = plan.n_groups();
    sleep.window = plan.before(g).window;
    sleep.replay_terms = series.replay_terms();
    sleep.beta1 = series.beta1();
    sleep.root_beta2 = std::sqrt(series.beta2());
    catch_ups += sleep.window + 1;
  }
  return sleeps;
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
  job.param = table_data(param, "param", job.width, device);
  job.exp_avg = table_data(exp_avg, "exp_avg", job.width, device);
  job.exp_avg_sq = table_data(exp_avg_sq, "exp_avg_sq", job.width, device);
  job.slots = device_ids_from(slots, "slots", device);
  job.step = plan.step();
  job.steps = !grads.is_none();
  job.has_quads = job.width % 4 == 0 && is_aligned(job.param) && is_aligned(job.exp_avg) &&
                  is_aligned(job.exp_avg_sq);
  if (sleeps) {
    const Array array(last_step, "last_step");
    array.shape({python::kAny}).on(device).contiguous().writable();
    job.last_step = array.data<std::int32_t>();
    job.ids = device_ids_from(ids, "ids", device);
    GS_CHECK(job.ids.size == job.slots.size, "ids must be ", job.slots.size, " as slots, got ",
             job.ids.size);
  }
  if (!marks.is_none()) {
    const Array array(marks, "marks");
    array.shape({job.slots.size}).on(device).contiguous();
    job.marks = array.data<const std::uint8_t>();
  }
  if (!counts.is_none()) {
    const Array array(counts, "counts");
    array.shape({2}).on(device).contiguous().writable();
    job.counts = array.data<std::int64_t>();
  }
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

void device_slots(const StepPlan&, const std::vector<std::int32_t>&, const std::vector<int>&,
                  const py::object&, const py::object&, const py::object&, const py::object&,
                  const py::object&, const py::object&, const py::object&, const py::object&,
                  const py::object&, const py::object&, const py::object&, int, std::uintptr_t) {
  GS_CHECK_AS(CudaError, false,
              "DeviceRows on a CUDA device needs a build with CUDA; install the CUDA toolkit "
              "(nvcc) and build gs-adam again: pip install --no-cache-dir --force-reinstall "
              "gs-adam");
}

#endif

}  // namespace

void register_device_slots(py::module_& module) {
  module.def("device_slots", &device_slots, py::arg("plan"), py::arg("widths"), py::arg("groups"),
             py::arg("param"), py::arg("exp_avg"), py::arg("exp_avg_sq"), py::arg("slots"),
             py::arg("last_step"), py::arg("ids"), py::arg("marks"), py::arg("grads"),
             py::arg("counts"), py::arg("recent"), py::arg("past"), py::arg("device"),
             py::arg("stream"));
}

}  // namespace gs::adam
