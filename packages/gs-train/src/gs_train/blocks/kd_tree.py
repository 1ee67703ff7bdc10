# SPDX-License-Identifier: Apache-2.0
"""A kd tree of rows, by one thread or several."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gs_train.blocks.kd_cuts import cut_to_leaves, halve


class _Node(NamedTuple):
    """Rows ``start`` to ``stop`` of the tree, and its ``leaves`` from ``first`` on."""

    start: int
    stop: int
    first: int
    leaves: int


def sort_into_leaves(
    axes: NDArray[np.float32], n_leaves: int, threads: int, *, alone: int = 1 << 17
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sort rows leaf after leaf, into leaves as equal as can be. See
    :func:`gs_train.blocks.partition.kd_partition`.

    Args:
        axes: (4, N) float32 finite: means, and the largest log scale; rows in the order of keys.
            They are sorted in place.
        n_leaves: at least 1; 0 without rows.
        threads: that cut nodes; no result depends on them.
        alone: rows of a node that one thread cuts to leaves.

    Returns:
        (N,) the row at each place; in a leaf they keep their order. And (n_leaves + 1,) the places
        of leaf k are [offsets[k], offsets[k + 1]).
    """
    n = axes.shape[1]
    rows, offsets = np.arange(n), np.full(n_leaves + 1, n)
    arrays = axes, rows, np.empty(n, np.bool_), np.empty(n, np.bool_)

    def cut(node: _Node) -> tuple[_Node, ...]:
        """What is left to be cut."""
        start, stop, first, leaves = node
        if leaves <= 1 or stop - start <= alone:
            cut_to_leaves(*arrays, offsets, *node)
            return ()
        middle, half = halve(*arrays, start, stop, leaves), leaves // 2
        return (
            _Node(start, middle, first, half),
            _Node(middle, stop, first + half, leaves - half),
        )

    with ThreadPoolExecutor(threads) as pool:
        at_work: set[Future[tuple[_Node, ...]]] = {pool.submit(cut, _Node(0, n, 0, n_leaves))}
        while at_work:
            done, at_work = wait(at_work, return_when=FIRST_COMPLETED)
            at_work |= {pool.submit(cut, node) for one in done for node in one.result()}
    return rows, offsets
