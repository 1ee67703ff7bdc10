# SPDX-License-Identifier: Apache-2.0
"""What density control reads of each view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from gs_raster.cuda.addresses import address

Native: TypeAlias = tuple[int, int, int, float, float, bool]

NO_STATISTICS: Native = (0, 0, 0, 0.0, 0.0, False)
"""For the native function."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """What density control reads, of each slot of the geometry, added to by :func:`draw_backward`.

    Attributes:
        grad2d: (N,) float32, sums over views of the norm of d loss / d mean times ``scale``.
        count: (N,) float32, views that showed the row.
        extents: (N,) float32, the largest radius so far as a share of the longer side of the image;
            None: not asked for.
        scale: of x and y: half the image's size for normalised device coordinates, times the
            views that the loss is the mean of.
        absgrad: norms of the sums of |d loss / d mean| (AbsGS, Ye et al. 2024).

    Raises:
        TypeError: a dtype differs.
        ValueError: a shape or device differs.
    """

    grad2d: Tensor
    count: Tensor
    extents: Tensor | None = None
    scale: tuple[float, float] = (1.0, 1.0)
    absgrad: bool = False

    def native(self, n: int, device: torch.device) -> Native:
        """Checked, for n slots."""
        grad2d = address("statistics.grad2d", self.grad2d, (n,), torch.float32, device)
        count = address("statistics.count", self.count, (n,), torch.float32, device)
        extents = 0
        if self.extents is not None:
            extents = address("statistics.extents", self.extents, (n,), torch.float32, device)
        return grad2d, count, extents, *self.scale, self.absgrad
