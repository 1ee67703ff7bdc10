# SPDX-License-Identifier: Apache-2.0
"""How coarse a first picture is, from how long the ones before took."""

from __future__ import annotations

SLOW_S, FAST_S = 0.15, 0.04
"""A first picture that took longer is drawn coarser from now on, one that took less finer."""

_COARSEST = 1 / 8


class Pace:
    """The scale of first pictures: full size, or 1/2, 1/4 or 1/8 of each side.

    A clock decides how coarse a picture is, never what is drawn at a size.

    Attributes:
        scale: of the next first picture.
    """

    def __init__(self) -> None:
        self.scale = 1 / 4

    def took(self, seconds: float) -> None:
        """Note how long a first picture of this scale took."""
        if seconds > SLOW_S:
            self.scale = max(_COARSEST, self.scale / 2)
        elif seconds < FAST_S:
            self.scale = min(1.0, self.scale * 2)
