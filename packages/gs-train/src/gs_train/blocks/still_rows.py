# SPDX-License-Identifier: Apache-2.0
"""The ends of boxes of blocks whose rows have taken no step."""

from __future__ import annotations

import numpy as np
from numba import njit

from gs_train.blocks.partition import Doubles, Floats, Ids


def least_of_still(counts: Ids, means: Floats, scales: Floats) -> Doubles:
    """(n, 9) the least by block of :func:`gs_train.blocks.box_fits.ends_of` where all moments are
    zero: nothing moves such rows.

    Args:
        counts: (n,) rows of each block; rows lie block after block.
        means: (R, 3).
        scales: (R, 3) logarithms.

    Cost: on the calling thread, without Python's lock.
    """
    least = np.full((len(counts), 9), np.inf)
    _fill(np.ascontiguousarray(counts), means, scales, least)
    return least


@njit(cache=True, nogil=True, error_model="numpy")
def _fill(counts, means, scales, least):  # type: ignore[no-untyped-def]
    row = 0
    for block in range(len(counts)):
        own = least[block]
        for i in range(row, row + counts[block]):
            shows, largest = True, -np.inf
            for axis in range(3):
                shows &= np.isfinite(means[i, axis]) and scales[i, axis] < np.inf
                largest = max(largest, np.float64(scales[i, axis]))
            if shows:
                for axis in range(3):
                    mean = np.float64(means[i, axis])
                    own[axis], own[3 + axis] = min(own[axis], mean), min(own[3 + axis], -mean)
                own[6] = min(own[6], -largest)
            own[7] = own[8] = 0.0
        row += counts[block]
