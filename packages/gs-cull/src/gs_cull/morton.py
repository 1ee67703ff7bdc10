# SPDX-License-Identifier: Apache-2.0
"""The order of rows along a Morton (Z-order) curve."""

from __future__ import annotations

from gs_cull.arrays import Array, native, on_host


def morton_order(means: Array, lower: Array, upper: Array) -> Array:
    """Sort rows along the curve through the cube that holds all finite means.

    Args:
        means: (N, 3) float32.
        lower, upper: (blocks, 3) boxes that together hold the finite means tightly; a box of none
            has lower > upper.

    Returns:
        (N,) int32 rows by 63-bit code, equal codes in the order of rows, rows that are not finite
        last; the same on every device. Of the kind of ``means``. Synchronises on CUDA.
    """
    low = on_host(lower).min(0).astype(float)
    extent = float((on_host(upper).max(0) - low).max())
    cells_per_unit = 2.0**21 / extent if 0 < extent < float("inf") else 0.0
    if cells_per_unit == 0.0:
        low[:] = 0.0
    cube = (low[0], low[1], low[2], cells_per_unit)
    return native(means).morton_order(means, cube)
