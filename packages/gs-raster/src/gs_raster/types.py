# SPDX-License-Identifier: Apache-2.0
"""Plain types of the stages, wherever a stage runs.

An instance is a pair of a splat and a tile that the splat touches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gs_raster.numbers import real

MAX_INSTANCES = 2**31 - 1
"""Instances of one rectangle: their places are 32-bit numbers."""


class TooManyInstancesError(ValueError):
    """One pass cannot draw the whole rectangle; smaller rectangles can be drawn."""

    def __init__(self, n_instances: int) -> None:
        super().__init__(
            f"splats must touch at most {MAX_INSTANCES:,} tiles in all, got "
            f"{n_instances:,}; rasterize smaller rectangles"
        )


def check_instances(n_instances: int) -> None:
    """Raise TooManyInstancesError where one rectangle has more than MAX_INSTANCES."""
    if n_instances > MAX_INSTANCES:
        raise TooManyInstancesError(n_instances)


class Options(NamedTuple):
    """How rows are projected, and so which of them show; gsplat's defaults.

    Attributes:
        antialiased: scale opacity by sqrt(det(C) / det(C + eps2d I)), as gsplat's
            ``rasterize_mode="antialiased"`` does (Mip-Splatting, Yu et al. 2024).
        eps2d: variance added to both axes of the 2D covariance C, pixel^2; above 0.
        near, far: rows show for ``near <= z <= far``, camera z.
        radius_clip: rows whose extent is at most this many pixels on both axes do not show.
    """

    antialiased: bool = False
    eps2d: float = 0.3
    near: float = 0.01
    far: float = 1e10
    radius_clip: float = 0.0

    def checked(self) -> Options:
        """The same options as one bool and four floats.

        Raises:
            TypeError: a value is no number.
            ValueError: ``eps2d`` is not above 0, or ``near`` is not between 0 and ``far``.
        """
        eps2d, near, far, radius_clip = map(real, self._fields[1:], self[1:])
        if not eps2d > 0:
            raise ValueError(f"eps2d must be above 0, got {eps2d}")
        if not 0 < near < far:
            raise ValueError(f"near must be above 0 and below far, got near={near}, far={far}")
        return Options(bool(self.antialiased), eps2d, near, far, radius_clip)


@dataclass(frozen=True)
class Rect:
    """Pixels ``x0 <= x < x1``, ``y0 <= y < y1`` of a view."""

    x0: int
    y0: int
    x1: int
    y1: int

    @property
    def width(self) -> int:
        return self.x1 - self.x0

    @property
    def height(self) -> int:
        return self.y1 - self.y0

    def halves(self) -> tuple[Rect, Rect]:
        """The two parts of a cut across the longer side; of a single pixel, one is empty."""
        if self.width >= self.height:
            x = (self.x0 + self.x1) // 2
            return Rect(self.x0, self.y0, x, self.y1), Rect(x, self.y0, self.x1, self.y1)
        y = (self.y0 + self.y1) // 2
        return Rect(self.x0, self.y0, self.x1, y), Rect(self.x0, y, self.x1, self.y1)
