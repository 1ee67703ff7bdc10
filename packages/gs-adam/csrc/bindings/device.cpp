// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arguments.hpp"
#include "schedule.hpp"
#if defined(GS_WITH_CUDA)
#include "device_step.hpp"
#endif

namespace gs::adam {
namespace {

#if defined(GS_WITH_CUDA)

using python::Array;

std::string item(const char* name, std::size_t k) {
  return std::string(name) + "[" + std::to_string(k) + "]";
}

float* device_data(const Array& array, std::int64_t n_rows, std::int64_t width, int device) {
  array.on(device).contiguous().writable();
  GS_CHECK(array.ndim() >= 1 && array.size(0) == n_rows && array.inner_size() == width,
           array.name(), " must have ", n_rows, " rows of ", width, " values, got shape ",
           array.shape_text());
  return array.data<float>();
}

Penalty penalty_named(const std::string& name) {
  GS_CHECK(name == "exp" || name == "sigmoid", "penalties must be named exp or sigmoid, got ",
           name);
  return name == "exp" ? Penalty::kExp : Penalty::kSigmoid;
}

// Counts the step: right behind the call Ctrl-C may be raised, when the kernel is on its way.
void device_step(Schedule& schedule, const std::shared_ptr<StepPlan>& counted,
                 const py::list& params, const py::list& exp_avg, const py::list& exp_avg_sq,
                 const std::vector<int>& groups, const py::object& ids, const py::object& grads,
                 const std::vector<std::pair<std::string, float>>& penalties,
                 const py::object& words, int device, std::uintptr_t stream) {
  schedule.check_is_next(*counted);
  const StepPlan& plan = *counted;
  const std::int64_t n_rows = Array(params[0], "params[0]").size(0);
  DeviceJob job{};
  job.n_rows = n_rows;
  job.by_row = ids.is_none();
  if (!job.by_row) {
    job.ids = device_ids_from(ids, "ids", device);
    const Array array(words, "words");
    array.shape({device_words(n_rows)}).on(device).contiguous().writable();
    job.words = array.data<std::int64_t>();
  }
  const std::int64_t n_grads = job.by_row ? n_rows : job.ids.size;
  const bool has_grads = !grads.is_none();
  const py::list gradients = has_grads ? py::list(grads) : py::list();
  GS_CHECK(!has_grads || gradients.size() == params.size(),
           "grads must have one entry a parameter (", params.size(), "), got ", gradients.size());
  std::vector<DeviceTensor> tensors;
  std::vector<Columns> read, written;
  for (std::size_t k = 0; k < params.size(); ++k) {
    const Array param(params[k], item("params", k).c_str());
    const Array average(exp_avg[k], item("exp_avg", k).c_str());
    const Array square(exp_avg_sq[k], item("exp_avg_sq", k).c_str());
    const std::int64_t width = param.inner_size();
    DeviceTensor t{};
    t.param = device_data(param, n_rows, width, device);
    t.exp_avg = device_data(average, n_rows, width, device);
    t.exp_avg_sq = device_data(square, n_rows, width, device);
    written.push_back({"params", k, t.param, n_rows, width, width});
    written.push_back({"exp_avg", k, t.exp_avg, n_rows, width, width});
    written.push_back({"exp_avg_sq", k, t.exp_avg_sq, n_rows, width, width});
    t.is_aligned = is_aligned(t.param) && is_aligned(t.exp_avg) && is_aligned(t.exp_avg_sq);
    t.width = static_cast<std::int32_t>(width);
    t.step = plan.constants(groups[k]);
    if (penalties[k].second != 0.0f) {
      t.penalty = penalty_named(penalties[k].first);
      t.penalty_weight = penalties[k].second;
    }
    if (has_grads) {
      const Array grad(gradients[k], item("grads", k).c_str());
      grad.on(device).row_contiguous();
      GS_CHECK(grad.ndim() >= 1 && grad.size(0) == n_grads && grad.inner_size() == width,
               grad.name(), " must have ", n_grads, " rows of ", width, " values, got shape ",
               grad.shape_text());
      t.grad = grad.data<float>();
      t.grad_stride = grad.row_stride();
      t.has_flat_grad = grad.row_stride() == width && is_aligned(t.grad);
      read.push_back({"grads", k, t.grad, n_grads, grad.row_stride(), width});
    }
    if (width > 0) tensors.push_back(t);
  }
  check_apart(written);
  check_apart(read, written);
  {
    const python::ReleaseGil nogil;
    for (std::size_t done = 0; done < tensors.size(); done += kMostDeviceTensors) {
      const std::size_t n = std::min<std::size_t>(kMostDeviceTensors, tensors.size() - done);
      std::copy_n(tensors.begin() + done, n, job.tensors);
      job.n_tensors = static_cast<std::int32_t>(n);
      launch_device_step(job, device, cuda::StreamView::from_handle(stream));
    }
  }
  schedule.accept(counted);
}

#else

void device_step(Schedule&, const std::shared_ptr<StepPlan>&, const py::list&, const py::list&,
                 const py::list&, const std::vector<int>&, const py::object&, const py::object&,
                 const std::vector<std::pair<std::string, float>>&, const py::object&, int,
                 std::uintptr_t) {
  GS_CHECK_AS(CudaError, false,
              "DeviceAdam on CUDA tensors needs a build with CUDA; install the CUDA toolkit (nvcc) "
              "and build gs-adam again: pip install --no-cache-dir --force-reinstall gs-adam");
}

#endif

/// Whether ids on a device are looked at before they are used. os.environ writes to the process's
/// environment; to read it from Python takes ten times as long.
bool checks_index() {
  const char* const value = std::getenv("GS_CHECK_INDEX");
  return value != nullptr && std::string(value) == "1";
}

}  // namespace

void register_device(py::module_& module) {
  module.def("checks_index", &checks_index);
  module.def("device_step", &device_step, py::arg("schedule"), py::arg("plan"), py::arg("params"),
             py::arg("exp_avg"), py::arg("exp_avg_sq"), py::arg("groups"), py::arg("ids"),
             py::arg("grads"), py::arg("penalties"), py::arg("words"), py::arg("device"),
             py::arg("stream"));
}

}  // namespace gs::adam
