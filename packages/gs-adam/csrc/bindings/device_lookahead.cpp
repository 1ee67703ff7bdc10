// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <vector>

#include "bindings/arguments.hpp"
#include "bindings/device_tables.hpp"
#include "schedule.hpp"
#if defined(GS_WITH_CUDA)
#include "device_lookahead.hpp"
#endif

namespace gs::adam {
namespace {

#if defined(GS_WITH_CUDA)

using python::Array;

void device_lookahead(const StepPlan& plan, const std::vector<std::int32_t>& widths,
                      const std::vector<int>& groups, const py::object& param,
                      const py::object& exp_avg, const py::object& exp_avg_sq,
                      const py::object& slots, const py::object& last_step, const py::object& ids,
                      const py::object& recent, const py::object& past, const py::list& out,
                      int device, std::uintptr_t stream) {
  GS_CHECK(widths.size() <= kMostSegments, "params must be at most ", kMostSegments,
           " tensors, got ", widths.size());
  GS_CHECK(out.size() == widths.size(), "out must be ", widths.size(), " tensors, got ",
           out.size());
  DeviceLookahead job{};
  const bool sleeps = !last_step.is_none();
  std::vector<DeviceSleep> sleeps_by_group(plan.n_groups());
  if (sleeps) sleeps_by_group = sleeps_of(plan, recent, past, device);
  for (const std::int32_t width : widths) job.width += width;
  std::int64_t n_slots = python::kAny;
  std::vector<Bytes> read, written;
  job.param = table_data(param, "param", &n_slots, job.width, device, false, &read);
  job.exp_avg = table_data(exp_avg, "exp_avg", &n_slots, job.width, device, false, &read);
  job.exp_avg_sq = table_data(exp_avg_sq, "exp_avg_sq", &n_slots, job.width, device, false, &read);
  job.slots = device_ids_from(slots, "slots", device);
  read.push_back(list_of("slots", job.slots));
  job.target = plan.step() - 1;
  job.has_quads = job.width % 4 == 0 && is_aligned(job.param) && is_aligned(job.exp_avg) &&
                  is_aligned(job.exp_avg_sq);
  if (sleeps) {
    const Array array(last_step, "last_step");
    array.shape({python::kAny}).on(device).contiguous();
    job.last_step = array.data<const std::int32_t>();
    read.push_back({"last_step", job.last_step, 4 * array.size(0)});
    job.ids = ids.is(slots) ? job.slots : device_ids_from(ids, "ids", device);
    GS_CHECK(job.ids.size == job.slots.size, "ids must be ", job.slots.size, " as slots, got ",
             job.ids.size);
    if (!ids.is(slots)) read.push_back(list_of("ids", job.ids));
  }
  std::int32_t end = 0;
  for (std::size_t k = 0; k < widths.size(); ++k) {
    const Array array(out[k], "out");
    array.shape({job.slots.size, widths[k]}).on(device).contiguous().writable();
    end += widths[k];
    if (widths[k] == 0) continue;
    auto* const data = array.data<float>();
    job.tensors[job.n_tensors++] = {end, widths[k], data, sleeps_by_group[groups[k]]};
    const Bytes bytes{"out", data, 4 * job.slots.size * widths[k]};
    check_apart(bytes, written);
    written.push_back(bytes);
  }
  for (const Bytes& bytes : read) check_apart(bytes, written);
  const python::ReleaseGil nogil;
  launch_device_lookahead(job, device, cuda::StreamView::from_handle(stream));
}

#else

void device_lookahead(const StepPlan&, const std::vector<std::int32_t>&, const std::vector<int>&,
                      const py::object&, const py::object&, const py::object&, const py::object&,
                      const py::object&, const py::object&, const py::object&, const py::object&,
                      const py::list&, int, std::uintptr_t) {
  throw_without_cuda();
}

#endif

}  // namespace

void register_device_lookahead(py::module_& module) {
  module.def("device_lookahead", &device_lookahead, py::arg("plan"), py::arg("widths"),
             py::arg("groups"), py::arg("param"), py::arg("exp_avg"), py::arg("exp_avg_sq"),
             py::arg("slots"), py::arg("last_step"), py::arg("ids"), py::arg("recent"),
             py::arg("past"), py::arg("out"), py::arg("device"), py::arg("stream"));
}

}  // namespace gs::adam
