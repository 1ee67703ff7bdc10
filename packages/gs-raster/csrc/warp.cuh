// SPDX-License-Identifier: Apache-2.0
// The threads that run together.
#pragma once

namespace gs::raster {

constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;  // a bit for each lane

}  // namespace gs::raster
