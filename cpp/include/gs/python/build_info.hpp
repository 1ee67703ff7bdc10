// SPDX-License-Identifier: Apache-2.0
// What a module was built with, for reports and issues.
#pragma once

#include <pybind11/pybind11.h>

#include "gs/simd_level.hpp"

#if defined(GS_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace gs::python {

/// Adds `__version__` and `build_info()`: a dict of version, compiler, C++ standard, SIMD levels
/// compiled in and the one in use, and CUDA toolkit and architectures, or None when built without
/// CUDA. Needs no driver.
inline void register_build_info(pybind11::module_& module) {
  namespace py = pybind11;
  module.attr("__version__") = GS_VERSION;
  module.def("build_info", [] {
    py::dict info;
    info["version"] = GS_VERSION;
#if defined(__clang__)
    info["compiler"] = std::string("clang ") + __clang_version__;
#elif defined(__GNUC__)
    info["compiler"] = std::string("gcc ") + __VERSION__;
#else
    info["compiler"] = "unknown";
#endif
    info["cxx_standard"] = static_cast<long>(__cplusplus);
    py::list levels;
    levels.append("scalar");
#if defined(GS_WITH_AVX2)
    levels.append("avx2");
#endif
#if defined(GS_WITH_AVX512)
    levels.append("avx512");
#endif
    info["simd_compiled"] = levels;
    info["simd_used"] = simd_name(chosen_simd());
#if defined(GS_WITH_CUDA)
    info["cuda_toolkit"] =
        std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
    info["cuda_architectures"] = GS_CUDA_ARCHITECTURES;
#else
    info["cuda_toolkit"] = py::none();
    info["cuda_architectures"] = py::none();
#endif
    return info;
  });
}

}  // namespace gs::python
