# SPDX-License-Identifier: Apache-2.0
"""Views that are left over when ranks share a batch are cut into crops.

Of B views and W ranks, B mod W views are left over. Those with the most work are cut into W crops
altogether, so that the first round has a crop for each rank and every other round a whole view. The
cuts follow from counts of tile intersections that all ranks know, never from a clock.

    columns of tiles   | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
    two cores          |<------->|<------------------->|     cut in the middle of column 2
    what is drawn      |<--------->|
                             |<------------------------|     5 pixels more: column 2 twice

A cut in the middle of a column of tiles makes both crops draw that column; a cut between columns
would make them draw two.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numba import njit

from gs_train.losses.loss import Crop
from gs_train.losses.ssim import HALO
from gs_train.renderers.protocol import Rect
from gs_train.renderers.records import TILE

LEAST_WIDTH = 4 * HALO
"""Pixels of a crop on average: it is not much smaller than what it draws besides."""


def cut_left_over(
    crops: Sequence[Crop],
    work: Sequence[int],
    columns: Sequence[np.ndarray | None],
    n_ranks: int,
) -> list[list[Crop]]:
    """The crops that each microbatch of a batch is drawn in. See the module's text.

    Args:
        crops: (M,) of the microbatches, in canonical order.
        work: (M,) whole numbers, what it takes to draw each.
        columns: (M,) as for `cut`.
        n_ranks: W.

    Returns:
        (M,) from left to right; a microbatch that is drawn as it is keeps its own.
    """
    n_crops = crops_of(work, [crop.core for crop in crops], n_ranks)
    return [
        [crop] if n == 1 else [Crop(crop.view, core) for core in cut(crop.core, n, counts)]
        for crop, n, counts in zip(crops, n_crops, columns, strict=True)
    ]


def crops_of(work: Sequence[int], cores: Sequence[Rect], n_ranks: int) -> tuple[int, ...]:
    """How many crops each microbatch of a batch is cut into: 1 where it is drawn as it is.

    Args:
        work: (M,) whole numbers, what it takes to draw each.
        cores: (M,) pixels that each answers for.
        n_ranks: W.

    Returns:
        (M,). They add up to a multiple of W, unless the cores are too narrow for that.
    """
    crops = [1] * len(work)
    left = len(work) % n_ranks
    if not left:
        return tuple(crops)
    by_work = sorted(range(len(work)), key=lambda m: (-work[m], m))[:left]
    queue = [(Fraction(-work[m]), m) for m in by_work]
    heapq.heapify(queue)
    missing = n_ranks - left
    while queue and missing:
        _, m = heapq.heappop(queue)
        if (crops[m] + 1) * LEAST_WIDTH <= cores[m].width:
            crops[m] += 1
            missing -= 1
            heapq.heappush(queue, (Fraction(-work[m], crops[m]), m))
    return tuple(crops)


def cut(core: Rect, n: int, columns: np.ndarray | None) -> list[Rect]:
    """A rectangle of a view in parts that take about as much work each.

    Args:
        core: pixels.
        n: parts, at least 1; see `crops_of`.
        columns: (C,) tile intersections of each column of tiles of the view, when it was last
            drawn; None: not known.

    Returns:
        As many rectangles from left to right, none of them empty, that tile the core; fewer where
        it is too narrow.

    Raises:
        ValueError: there are fewer columns than the core has.
    """
    first, end = core.x0 // TILE, -(-core.x1 // TILE)
    if columns is not None and len(columns) < end:
        raise ValueError(f"columns must be of {end} columns of tiles at least, got {len(columns)}")
    known = np.zeros(end, np.int64) if columns is None else columns
    # One more for each: where nothing shows, crops are of one width.
    ends = np.zeros(end - first + 1, np.int64)
    np.cumsum(known[first:end] + 1, out=ends[1:])
    middles = TILE * np.arange(first, end) + TILE // 2
    least = TILE // 2
    usable = np.flatnonzero((core.x0 + least <= middles) & (middles <= core.x1 - least))
    cuts = _balanced(ends, usable, min(n, len(usable) + 1))
    edges = [core.x0, *middles[cuts].tolist(), core.x1]
    return [Rect(x0, core.y0, x1, core.y1) for x0, x1 in itertools.pairwise(edges)]


@njit(cache=True, nogil=True)
def _balanced(ends, usable, n):  # type: ignore[no-untyped-def]
    """Columns to cut n parts in, so that the costliest part is as cheap as can be. Both parts at a
    cut have its column.

    Args:
        ends: (C + 1,) int64, costs of the columns before each.
        usable: (K,) int64 columns that may be cut, ascending; n - 1 at least.
        n: parts.
    """
    cuts = np.empty(n - 1, np.int64)
    low, high = np.int64(0), ends[-1]  # no limit below `low` suffices, and `high` does
    while low < high:
        limit = (low + high) // 2
        if _within(limit, ends, usable, cuts):
            high = limit
        else:
            low = limit + 1
    _within(high, ends, usable, cuts)
    return cuts


@njit(cache=True, nogil=True)
def _within(limit, ends, usable, cuts):  # type: ignore[no-untyped-def]
    """Fill in the rightmost cuts whose parts cost at most a limit each. Returns whether there are
    some."""
    start, free = 0, 0  # the column that the part begins in, and the first cut that is left
    for part in range(len(cuts)):
        n_following = len(cuts) - 1 - part  # cuts that must find a place behind this one
        k = free
        while k < len(usable) - n_following and ends[usable[k] + 1] - ends[start] <= limit:
            k += 1
        if k == free:
            return False
        start, free = usable[k - 1], k
        cuts[part] = start
    return ends[-1] - ends[start] <= limit
