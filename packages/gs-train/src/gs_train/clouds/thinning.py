# SPDX-License-Identifier: Apache-2.0
"""Fewer points of regions, spread over the cloud evenly: those of `gs_train.scene.thinning`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gs_train.clouds.regions import Codes

_LEVELS = 21
_NEVER = _LEVELS + 1


@dataclass(frozen=True)
class Cells:
    """Where a region's points begin voxels, along the curve.

    Attributes:
        first, last: codes of the region's ends.
        counts: (23,) points but the first that begin a voxel of each level and of no coarser one;
            behind the finest level, points that begin none.
    """

    first: int
    last: int
    counts: Codes

    @classmethod
    def of(cls, codes: Codes) -> Cells:
        """Of sorted codes, at least one."""
        counts = np.bincount(_levels(codes, None)[1:], minlength=_NEVER + 1)
        return cls(int(codes[0]), int(codes[-1]), counts.astype(np.int64))


class Thinning:
    """Which points stay, so that no more than ``limit`` do.

    Args:
        cells: of all regions, in order.
        limit: at least 1, below the number of points.
    """

    def __init__(self, cells: list[Cells], limit: int) -> None:
        before = [None, *(one.last for one in cells[:-1])]
        self._before = before
        counts = np.array([one.counts for one in cells])
        for region, (one, code) in enumerate(zip(cells, before, strict=True)):
            counts[region, _levels(np.array([one.first]), code)[0]] += 1
        total = np.cumsum(counts.sum(0))
        self._level = int(np.searchsorted(total[:_NEVER], limit, side="right")) - 1
        self._left = limit - int(total[self._level])
        more = counts[:, self._level + 1]  # some of these stay too, evenly
        self._first_more = np.cumsum(more) - more
        self._n_more = int(more.sum()) if self._level < _LEVELS else 0

    def keeps(self, region: int, codes: Codes) -> NDArray[np.bool_]:
        """(P,) which of a region's points stay; ``codes`` are sorted."""
        levels = _levels(codes, self._before[region])
        keeps = levels <= self._level
        if self._n_more and self._left:
            more = np.flatnonzero(levels == self._level + 1)
            places = self._first_more[region] + np.arange(len(more))
            # The i-th that stays is the (i n // left)-th, of n.
            i = -(-places * self._left // self._n_more)
            keeps[more[(i < self._left) & (i * self._n_more // self._left == places)]] = True
        return keeps


def _levels(codes: Codes, before: int | None) -> NDArray[np.int64]:
    """(P,) the coarsest level of which a point begins a voxel, behind a code or none."""
    previous = np.concatenate([[-1 if before is None else before], codes[:-1]])
    differ = codes ^ previous
    levels = np.full(len(codes), _NEVER)
    for level in range(_LEVELS, 0, -1):
        levels[differ >> (3 * (_LEVELS - level)) != 0] = level
    if before is None:
        levels[0] = 0
    return levels
