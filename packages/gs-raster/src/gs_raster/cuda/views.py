# SPDX-License-Identifier: Apache-2.0
"""One posed pinhole image, as the stages take it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gs_raster.cuda.addresses import check
from gs_raster.numbers import whole
from gs_raster.types import Rect

MAX_SIDE = 65535 * 16
"""Most pixels on a side: a splat has 16 bits for the number of a tile."""


@dataclass(frozen=True, eq=False)
class View:
    """One posed pinhole image, without its pixels.

    Attributes:
        viewmat: (4, 4) float32, world to camera; x right, y down, z forward.
        K: (3, 3) float32 on the same device, pixels; the centre of the first pixel is (0.5, 0.5).
        width, height: pixels, 1 to 1,048,560.

    Raises:
        TypeError: a matrix is not float32, or a side is no whole number.
        ValueError: a shape, device or side is another.
    """

    viewmat: Tensor
    K: Tensor
    width: int
    height: int

    def __post_init__(self) -> None:
        device = self.viewmat.device if isinstance(self.viewmat, Tensor) else torch.device("cpu")
        check("viewmat", self.viewmat, (4, 4), torch.float32, device)
        check("K", self.K, (3, 3), torch.float32, device)
        for name in ("width", "height"):
            side = whole(name, getattr(self, name))
            if not 1 <= side <= MAX_SIDE:
                raise ValueError(f"{name} must be from 1 to {MAX_SIDE}, got {side}")
            object.__setattr__(self, name, side)

    @property
    def rect(self) -> Rect:
        """The rectangle that covers the whole image."""
        return Rect(0, 0, self.width, self.height)

    def checked_rect(self, rect: Rect | None) -> Rect:
        """A rectangle of this view; all of the view for None.

        Raises:
            ValueError: the rectangle is not inside the view.
        """
        if rect is None:
            return self.rect
        if not (0 <= rect.x0 <= rect.x1 <= self.width and 0 <= rect.y0 <= rect.y1 <= self.height):
            raise ValueError(f"rect must lie within {self.width} x {self.height}, got {rect}")
        return rect
