# SPDX-License-Identifier: Apache-2.0
"""A box that exported Gaussians lie in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gs_train.errors import InputError

Point = tuple[float, float, float]


@dataclass(frozen=True)
class Crop:
    """Positions with ``low <= position <= high`` on each axis.

    Attributes:
        low: (3,) in the frame of the exported rows.
        high: (3,) in the same frame.
    """

    low: Point
    high: Point

    @classmethod
    def of(cls, bounds: Sequence[float], *, option: str) -> Crop:
        """The box of six numbers: the lowest x, y and z, then the highest x, y and z.

        Args:
            option: that gave the numbers, for the message.

        Raises:
            InputError: a number is not finite, or a lowest one is not below the highest one.
        """
        if not all(map(math.isfinite, bounds)):
            raise InputError(f"{option} must be six finite numbers, got {_words(bounds)}")
        for axis, low, high in zip("XYZ", bounds[:3], bounds[3:], strict=True):
            if low >= high:
                raise InputError(
                    f"{option} must have {axis}MIN below {axis}MAX, got {low:g} and {high:g}"
                )
        low_x, low_y, low_z, x, y, z = bounds
        return cls((low_x, low_y, low_z), (x, y, z))

    def holds(self, means: np.ndarray) -> np.ndarray:
        """(n,) bool: positions (n, 3) inside the box, compared in float64. NaN is outside."""
        low, high = np.array(self.low), np.array(self.high)
        inside = (means >= low) & (means <= high)
        return np.asarray(inside.all(axis=1))

    def __str__(self) -> str:
        return f"{_words(self.low)} to {_words(self.high)}"


def _words(values: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in values)
