# SPDX-License-Identifier: Apache-2.0
"""Rows in blocks: the leaves of a kd tree, for any storage order of the rows the same by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gs_train.blocks.kd_cuts import cut, kd_leaves

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

    def block_of_row(self) -> Ids:
        """(N,) the block of each row."""
        blocks = np.empty(len(self.rows), np.int64)
        blocks[self.rows] = np.repeat(np.arange(len(self)), self.counts)
        return blocks

    @classmethod
    def of_blocks(cls, block_of_row: Ids, keys: Keys, n_blocks: int) -> Partition:
        """From the block of each row."""
        counts = np.bincount(block_of_row, minlength=n_blocks)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(np.lexsort((keys, block_of_row)), offsets)


def kd_partition(means: Floats, scales: Floats, keys: Keys, block_rows: int) -> Partition:
    """As few blocks of at most ``block_rows`` rows as there can be, of equal size but for one row.

    A node of k leaves is cut so that k // 2 leaves lie on the first side, along x, y, z or the
    largest log scale. The cut taken has the least sum, over both sides, of rows times surface of
    the side's box: its means, grown by 3.33 of its largest scale. Equal values are cut by key.

    Args:
        means: (N, 3).
        scales: (N, 3) logarithms.
        keys: (N,) int32, all different.
        block_rows: B, at least 1.

    Raises:
        ValueError: shapes disagree, or there is no room for a row.

    Cost: about 0.1 us a row for each level of the tree, on the calling thread, without Python's
        lock; 40 bytes a row.
    """
    _check(means, scales, keys, block_rows)
    n = len(keys)
    by_key = np.argsort(keys, kind="stable").astype(np.int64)
    axes = _axes(means[by_key], scales[by_key])
    n_leaves = -(-n // block_rows)
    block_of_row = np.empty(n, np.int64)
    block_of_row[by_key] = kd_leaves(axes, n_leaves)
    return Partition.of_blocks(block_of_row, keys, n_leaves)


def halve_blocks(
    means: Floats, scales: Floats, keys: Keys, block_of_row: Ids, n_blocks: int, block_rows: int
) -> Partition:
    """Halve blocks that have grown beyond ``block_rows`` rows until none has; others do not change.

    Blocks are looked at in the order of their numbers. The first half keeps the number, the second
    gets the next free one and is looked at in its turn.

    Args:
        means, scales, keys, block_rows: as for `kd_partition`.
        block_of_row: (N,), children in the blocks of their parents.
        n_blocks: blocks so far; one may be empty.

    Raises:
        ValueError: as `kd_partition`.
    """
    _check(means, scales, keys, block_rows)
    block_of_row = block_of_row.copy()
    members = Partition.of_blocks(block_of_row, keys, n_blocks)
    axes = _axes(means, scales)
    blocks = np.split(members.rows, members.offsets[1:-1])
    b = 0
    while b < len(blocks):
        if len(blocks[b]) > block_rows:
            left = _cut(axes, blocks[b], len(blocks[b]) // 2)
            block_of_row[blocks[b][~left]] = len(blocks)
            blocks.append(blocks[b][~left])
            blocks[b] = blocks[b][left]
        else:
            b += 1
    return Partition.of_blocks(block_of_row, keys, len(blocks))


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


def _cut(axes: Floats, rows: Ids, n_left: int) -> NDArray[np.bool_]:
    """(R,) bool: the ``n_left`` rows on the first side of the best cut of ``rows``, which are in
    the order of keys."""
    best = np.zeros(len(rows), bool)
    cut(axes[:, rows], n_left, best, np.empty(len(rows), bool))
    return best
