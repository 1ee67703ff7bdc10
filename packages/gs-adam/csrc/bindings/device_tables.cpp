// SPDX-License-Identifier: Apache-2.0
#include "bindings/device_tables.hpp"

#include <cmath>

namespace gs::adam {

#if defined(GS_WITH_CUDA)

using python::Array;

void check_apart(const Bytes& list, const std::vector<Bytes>& written) {
  if (list.count == 0) return;
  for (const Bytes& other : written)
    GS_CHECK(other.count == 0 || list.end() <= other.begin || other.end() <= list.begin, list.name,
             " must have memory of its own, got some of ", other.name);
}

Bytes list_of(const char* name, const Ids& ids) {
  if (ids.wide == nullptr) return {name, ids.narrow, 4 * ids.size};
  return {name, ids.wide, 8 * ids.size};
}

float* table_data(const py::object& object, const char* name, std::int64_t* n_slots,
                  std::int64_t width, int device, bool is_written, std::vector<Bytes>* tables) {
  const Array array(object, name);
  array.shape({*n_slots, width}).on(device).contiguous();
  if (is_written) array.writable();
  *n_slots = array.size(0);
  auto* const data = array.data<float>();
  tables->push_back({name, data, 4 * *n_slots * width});
  return data;
}

std::uint8_t* bytes_of(const py::object& object, const char* name, std::int64_t least, int device) {
  const Array array(object, name);
  array.shape({python::kAny}).on(device).contiguous().writable();
  GS_CHECK(array.size(0) >= least, name, " must have ", least, " bytes, got ", array.size(0));
  return array.data<std::uint8_t>();
}

std::vector<DeviceSleep> sleeps_of(const StepPlan& plan, const py::object& recent,
                                   const py::object& past, int device) {
  std::vector<DeviceSleep> sleeps(plan.n_groups());
  const auto* catch_ups =
      reinterpret_cast<const CatchUp*>(bytes_of(recent, "recent", plan.recent_bytes(), device));
  const auto* pasts =
      reinterpret_cast<const Past*>(bytes_of(past, "past", plan.past_bytes(0), device));
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

#else

void throw_without_cuda() {
  detail::throw_error<CudaError>(
      "DeviceRows on a CUDA device needs a build with CUDA; install the CUDA toolkit (nvcc) and "
      "build gs-adam again: pip install --no-cache-dir --force-reinstall gs-adam");
}

#endif

}  // namespace gs::adam
