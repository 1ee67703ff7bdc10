# SPDX-License-Identifier: Apache-2.0
"""Rows in blocks: the leaves of a kd tree, for any storage order of the rows the same by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gs_train.blocks.kd_tree import sort_into_leaves

Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]
Ids: TypeAlias = NDArray[np.int64]
Keys: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Partition:
    """Rows by block, and in a block by key.

    Attributes:
        rows: (N,) row at each place.
        offsets: (blocks + 1,) the places of block b are [offsets[b], offsets[b + 1]).
    """

    rows: Ids
    offsets: Ids

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> Ids:
        """(blocks,) rows of each block."""
        return np.diff(self.offsets)


def kd_partition(
    means: Floats, scales: Floats, keys: Keys, block_rows: int, *, threads: int = 1
) -> Partition:
    """As few blocks of at most ``block_rows`` rows as there can be, of equal size but for one row.

    A node of k leaves is cut so that k // 2 leaves lie on the first side, along x, y, z or the
    largest log scale. The cut taken has the least sum, over both sides, of rows times surface of
    the side's box: its means, grown by 3.33 of its largest scale. Equal values are cut by key.

    Args:
        means: (N, 3).
        scales: (N, 3) logarithms.
        keys: (N,) int32, all different.
        block_rows: B, at least 1.
        threads: that cut; no result depends on them.

    Raises:
        ValueError: shapes disagree, or there is no room for a row.

    Cost: about 0.1 us a row for each level of the tree, without Python's lock. A thread cuts a
        node: the first level takes one thread's time, the second half of it, and so on. 48 bytes
        a row.
    """
    _check(means, scales, keys, block_rows)
    by_key = np.argsort(keys, kind="stable").astype(np.int64)
    axes = _axes(means[by_key], scales[by_key])
    rows, offsets = sort_into_leaves(axes, -(-len(keys) // block_rows), threads)
    return Partition(by_key[rows], offsets)


def _check(means: Floats, scales: Floats, keys: Keys, block_rows: int) -> None:
    n = len(keys)
    if means.shape != (n, 3) or scales.shape != (n, 3):
        raise ValueError(
            f"means and scales must be ({n}, 3) as there are {n} keys, got {means.shape} and "
            f"{scales.shape}"
        )
    if block_rows < 1:
        raise ValueError(f"block_rows must be at least 1, got {block_rows}")


def _axes(means: Floats, scales: Floats) -> Floats:
    """(4, N) what rows are cut by; values that are not finite count as the largest that is."""
    axes = np.empty((4, len(means)), np.float32)
    axes[:3], axes[3] = means.T, scales.max(1, initial=-np.inf)
    for axis in axes:
        finite = np.isfinite(axis)
        if not finite.all():
            axis[~finite] = axis[finite].max(initial=0.0)
    return axes
