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


def plan(
    ids: Matrix, visible: Matrix, order: Matrix, retain: str | int, ahead: int = 0
) -> list[dict[str, list[int]]]:
    """The lists of every microbatch, from Python sets.

    Args:
        visible: (U, B) bool.
        retain: ``"previous"``, ``"last_use"``, or a capacity: of the rows that wait, those used
            last are given up, by highest id among equals, at the first microbatch during which
            more wait than fit.
    """
    sets = [set(ids[visible[:, view]].tolist()) for view in order]
    n = len(sets)
    next_use = [{x: _next(sets, x, i + 1) for x in sets[i]} for i in range(n)]
    waits: set[tuple[int, int, int]] = set()  # (next use, id, use): stays on the device between
    if retain == "previous":
        waits = {(i + 1, x, i) for i in range(n) for x in sets[i] if next_use[i][x] == i + 1 < n}
    else:
        waits = {(j, x, i) for i in range(n) for x, j in next_use[i].items() if j < n}
    if not isinstance(retain, str):
        for t in range(n):
            here = set().union(*sets[t : t + ahead + 1])
            idle = sorted(w for w in waits if w[2] < t and w[0] > t + ahead)
            waits -= set(idle[max(0, retain - len(here)) :])
    steps = []
    for i, here in enumerate(sets):
        kept = {x for j, x, _ in waits if j == i}
        carried = {x for _, x, p in waits if p == i}
        final = {x for x in here if next_use[i][x] == n}
        parts = {
            "visible": here,
            "load": here - kept,
            "retain": kept,
            "store": here - carried,
            "carry": carried,
            "returning": here - carried - final,
            "final": final,
        }
        steps.append({kind: sorted(part) for kind, part in parts.items()})
    return steps


def _next(sets: list[set[int]], row: int, start: int) -> int:
    return next((j for j in range(start, len(sets)) if row in sets[j]), len(sets))
