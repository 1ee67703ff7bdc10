// SPDX-License-Identifier: Apache-2.0
// The degree of harmonics as a constant of a kernel.
#pragma once

#include <type_traits>

#include "gs/error.hpp"

namespace gs::raster {

/// Calls launch(std::integral_constant of the degree).
template <class Launch>
void with_degree(int sh_degree, Launch&& launch) {
  switch (sh_degree) {
    case 0:
      return launch(std::integral_constant<int, 0>{});
    case 1:
      return launch(std::integral_constant<int, 1>{});
    case 2:
      return launch(std::integral_constant<int, 2>{});
    case 3:
      return launch(std::integral_constant<int, 3>{});
    default:
      detail::throw_error<Error>("sh_degree must be 0 to 3, got ", sh_degree);
  }
}

}  // namespace gs::raster
