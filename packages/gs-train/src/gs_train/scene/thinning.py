# SPDX-License-Identifier: Apache-2.0
"""Fewer points of a cloud, spread over it evenly."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gs_train.rows.morton import morton_codes

_LEVELS = 21


def thinned_order(points: NDArray[np.float32], limit: int | None) -> NDArray[np.int64]:
    """Which points to take, along the Morton curve: all of them, or one a voxel.

    Voxels are the cells of the Morton curve: halvings of its cube. The finest that are no
    more than ``limit`` give one point each; what is left of ``limit`` goes to voxels half as wide,
    evenly along the curve. Points in one voxel of a 2^21st of the cube's width are one.

    Args:
        points: (P, 3) finite.
        limit: how many at most; None: all.

    Returns:
        (Q,) indices of points, Q = P or at most ``limit``.

    Cost: 24 bytes a point and a 64-bit sort.
    """
    codes, order = torch.sort(morton_codes(torch.from_numpy(points)), stable=True)
    if limit is None or len(points) <= limit:
        return order.numpy()
    level = _LEVELS
    while (starts := _starts(codes, level)).sum() > limit:
        level -= 1
    chosen = starts
    if level < _LEVELS:
        more = (_starts(codes, level + 1) & ~starts).nonzero()[:, 0]
        left = limit - int(starts.sum())
        chosen = starts.clone()
        chosen[more[torch.arange(left) * len(more) // max(left, 1)]] = True
    return order[chosen].numpy()


def _starts(codes: torch.Tensor, level: int) -> torch.Tensor:
    """(P,) bool: the first point of each voxel, 2^level of which span the cube."""
    cells = codes >> (3 * (_LEVELS - level))
    starts = torch.ones(len(codes), dtype=torch.bool)
    starts[1:] = cells[1:] != cells[:-1]
    return starts
