# SPDX-License-Identifier: Apache-2.0
"""Plain numpy definitions of what the compiled code computes. Slow, and the tests' measure."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, Any]


def pack(visible: Matrix) -> Matrix:
    """(U, B) bool to a mask (U, ceil(B / 32)) uint32."""
    n_rows, n_views = visible.shape
    padded = np.zeros((n_rows, 32 * -(-n_views // 32)), bool)
    padded[:, :n_views] = visible
    return np.packbits(padded, axis=1, bitorder="little").view("<u4").astype(np.uint32)


def unpack(mask: Matrix, n_views: int) -> Matrix:
    """A mask (U, W) uint32 to (U, B) bool."""
    views = np.arange(n_views)
    return (mask[:, views // 32] >> (views % 32).astype(np.uint32)) & 1 == 1


def xor_counts(visible: Matrix) -> Matrix:
    """(B, B) sizes of the symmetric differences of the columns of (U, B) bool."""
    return (visible[:, :, None] ^ visible[:, None, :]).sum(axis=0)


def path_length(distance: Matrix, order: Matrix) -> float:
    """Sum of distances between consecutive views."""
    return float(distance[order[:-1], order[1:]].sum())


def shortest_path_length(distance: Matrix, start: int | None = None) -> float:
    """The least `path_length` over all permutations (that begin with ``start``)."""
    views = range(len(distance))
    return min(
        path_length(distance, np.array(views))
        for views in itertools.permutations(views)
        if start is None or views[0] == start
    )
