# SPDX-License-Identifier: Apache-2.0
"""Which uses of blocks miss a memory that keeps those that are used next soonest."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

_GAPS, _WITHIN = 257, 129
"""Points at which gaps are looked at, and at which each of these is integrated."""

_LONGEST = 16.0  # mean gaps; fewer than one gap in a million is longer


def missed_share(share: float, uses: float) -> float:
    """The share of uses that miss.

    Each block is used at random moments, as often in each epoch as all others. From a use to the
    next the block stays in memory where that gap is shorter than a bound: the one at which as many
    blocks stay on average as there is room for. That is nearly what a memory does that knows all
    next uses (Belady's rule). Where each block is used once in each epoch and no more, so few stay
    at some moments that the share of misses is 1 - ``share``, up to 0.2 more than what is returned.

    Args:
        share: of the blocks that memory has room for.
        uses: of a block in an epoch; below 1 taken as 1.
    """
    if share >= 1.0:
        return 0.0
    kept, longer = _curve(max(1.0, uses))
    return float(np.interp(max(0.0, share), kept, longer))


@functools.lru_cache(maxsize=64)
def _curve(k: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The share of blocks that stay with rising bounds on gaps, and that of gaps beyond each."""
    gaps = np.linspace(0.0, min(2.0, _LONGEST / k), _GAPS)  # in epochs
    longer = _longer(gaps, k)
    areas = np.concatenate([[0.0], np.cumsum((longer[1:] + longer[:-1]) / 2 * np.diff(gaps))])
    kept = areas - gaps * longer
    return kept / kept[-1], longer


def _longer(gaps: NDArray[np.float64], k: float) -> NDArray[np.float64]:
    """The share of gaps that are longer, between ``k`` uses at even odds in each epoch.

    A use at moment u is followed within its epoch, where none of the k - 1 others hinders it, or
    in the next one, where one of k does.
    """
    same = np.maximum(0.0, 1.0 - gaps) ** k
    low, high = np.maximum(0.0, 1.0 - gaps), np.minimum(1.0, 2.0 - gaps)
    u = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, _WITHIN)
    later = np.maximum(0.0, 2.0 - gaps[:, None] - u)
    following = np.trapezoid(u ** (k - 1.0) * later**k, u, axis=1)
    return np.minimum(1.0, same + following)
