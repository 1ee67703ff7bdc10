// SPDX-License-Identifier: Apache-2.0
#include "check.hpp"
#include "gs/error.hpp"

int main() {
  const int rows = 4000;
  GS_CHECK(rows == 4000, "never built");
  CHECK_THROWS(gs::Error, "rows must be at most 3000, got 4000",
               GS_CHECK(rows <= 3000, "rows must be at most ", 3000, ", got ", rows));
  CHECK_THROWS(gs::RangeError, "row 7", GS_CHECK_AS(RangeError, false, "row ", 7));
  CHECK_THROWS(gs::Error, "row 7", GS_CHECK_AS(RangeError, false, "row ", 7));
}
