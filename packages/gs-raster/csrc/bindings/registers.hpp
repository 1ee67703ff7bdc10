// SPDX-License-Identifier: Apache-2.0
// What module.cpp puts together.
#pragma once

#include <pybind11/pybind11.h>

namespace gs::raster {

/// What GS_CHECK_INDEX asks for.
void register_indices(pybind11::module_& module);

/// The stages on a device; nothing in a build without CUDA.
void register_cuda(pybind11::module_& module);

/// Whole views on a device, after register_cuda(), whose types are arguments; likewise.
void register_draw(pybind11::module_& module);

/// Several views at once on a device, after register_cuda(); likewise.
void register_views(pybind11::module_& module);

}  // namespace gs::raster
