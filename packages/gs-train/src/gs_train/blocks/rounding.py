# SPDX-License-Identifier: Apache-2.0
"""Rounding from float64 to float32 in one direction."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]
Steps: TypeAlias = NDArray[np.int64]


def float32_below(values: Doubles) -> Floats:
    """The largest float32 that is no larger; NaN stays NaN.

    Below the smallest float32 that is -inf, above the largest one the largest, which is finite.
    """
    with np.errstate(over="ignore", under="ignore"):
        rounded = values.astype(np.float32)
        below = np.nextafter(rounded, np.float32(-np.inf))
    return np.where(rounded > values, below, rounded)


def float32_above(values: Doubles) -> Floats:
    """The smallest float32 that is no smaller; NaN stays NaN."""
    return -float32_below(-values)
