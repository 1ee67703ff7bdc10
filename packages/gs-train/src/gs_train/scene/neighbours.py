# SPDX-License-Identifier: Apache-2.0
"""How far apart the points of a large cloud are: three nearest neighbours, searched in chunks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gs_train.machine.usable_cores import usable_cores

_LEAF = 8  # points in the smallest box
_CHUNK = 1 << 18

DEPTH = 64
"""Of the stack of boxes to look into; a tree of 2^31 points is less deep."""

Floats = NDArray[np.float32]


def neighbour_spacing(points: Floats, report: Callable[[int, int], None] | None = None) -> Floats:
    """Root mean square distance to the three nearest other points.

    Points along a Morton curve are a tree already: eight in a row fill a small box, two boxes in a
    row a larger one, and so on. A point looks into its own box first and then into those that could
    hold a nearer point than the third that it has, so the result is exact: distances are those of
    the float32 coordinates, computed in float64.

    Args:
        points: (P, 3) finite, contiguous, in Morton order. Any other order gives the same result,
            slowly.
        report: called with (points done, points) now and then.

    Returns:
        (P,) float32; 0 where three others coincide with a point. Infinite with fewer than four
        points.

    Cost: 8 bytes a point beside the result; on all cores, about 2.5 us a point divided by them.
    """
    n = len(points)
    spacing = np.empty(n, np.float32)
    if n == 0:
        return spacing
    n_leaves = _n_leaves(n)
    boxes = np.empty((2 * n_leaves, 6), np.float32)

    def chunks(n_all: int) -> list[tuple[int, int]]:
        return [(at, min(at + _CHUNK, n_all)) for at in range(0, n_all, _CHUNK)]

    with ThreadPoolExecutor(usable_cores()) as pool:
        for _ in pool.map(lambda part: _enclose(points, boxes, n_leaves, *part), chunks(n_leaves)):
            pass
        level = n_leaves // 2
        while level:
            for _ in pool.map(lambda part, at=level: _join(boxes, at, *part), chunks(level)):
                pass
            level //= 2
        done = 0
        for count in pool.map(lambda part: _search(points, boxes, spacing, *part), chunks(n)):
            done += count
            if report is not None:
                report(done, n)
    return spacing


def point_tree(points: Floats) -> Floats:
    """(2 L, 6) the boxes of a tree over points, on the calling thread, without Python's lock.

    L is the number of leaves of eight points, rounded up to a power of two. The boxes below node
    ``i`` are ``2 i`` and ``2 i + 1``, from node 1 on; leaves are the last L.
    """
    n_leaves = _n_leaves(len(points))
    boxes = np.empty((2 * n_leaves, 6), np.float32)
    _enclose(points, boxes, n_leaves, 0, n_leaves)
    join_boxes(boxes)
    return boxes


def _n_leaves(n_points: int) -> int:
    return 1 << max(0, (-(-n_points // _LEAF) - 1).bit_length())


@njit(cache=True, nogil=True, error_model="numpy")
def join_boxes(boxes):  # type: ignore[no-untyped-def]
    """Fill the first half of a tree's boxes from the leaves."""
    level = len(boxes) // 4
    while level:
        _join(boxes, level, 0, level)
        level //= 2


@njit(cache=True, nogil=True, error_model="numpy")
def _enclose(points, boxes, n_leaves, start, stop):  # type: ignore[no-untyped-def]
    """Boxes of runs of points; of none, one that nothing is near to."""
    for leaf in range(start, stop):
        box = boxes[n_leaves + leaf]
        box[:3] = np.inf
        box[3:] = -np.inf
        for i in range(leaf * _LEAF, min((leaf + 1) * _LEAF, len(points))):
            for axis in range(3):
                box[axis] = min(box[axis], points[i, axis])
                box[3 + axis] = max(box[3 + axis], points[i, axis])


@njit(cache=True, nogil=True, error_model="numpy")
def _join(boxes, level, start, stop):  # type: ignore[no-untyped-def]
    """Boxes ``level + start`` to ``level + stop`` around the two below each."""
    for node in range(level + start, level + stop):
        for axis in range(3):
            boxes[node, axis] = min(boxes[2 * node, axis], boxes[2 * node + 1, axis])
            boxes[node, 3 + axis] = max(boxes[2 * node, 3 + axis], boxes[2 * node + 1, 3 + axis])


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def outside(boxes, node, x, y, z):  # type: ignore[no-untyped-def]
    """Squared distance of a point to a box, 0 inside."""
    dx = max(boxes[node, 0] - x, x - boxes[node, 3], 0.0)
    dy = max(boxes[node, 1] - y, y - boxes[node, 4], 0.0)
    dz = max(boxes[node, 2] - z, z - boxes[node, 5], 0.0)
    return dx * dx + dy * dy + dz * dz


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _look(points, leaf, i, x, y, z, a, b, c):  # type: ignore[no-untyped-def]
    """The three least squared distances so far, and those to the points of a leaf but i."""
    for j in range(leaf * _LEAF, min((leaf + 1) * _LEAF, len(points))):
        if j == i:
            continue
        dx, dy, dz = points[j, 0] - x, points[j, 1] - y, points[j, 2] - z
        d = dx * dx + dy * dy + dz * dz
        if d < c:
            if d < b:
                c = b
                if d < a:
                    b, a = a, d
                else:
                    b = d
            else:
                c = d
    return a, b, c


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def below(points, boxes, top, i, x, y, z, a, b, c, nodes, near):  # type: ignore[no-untyped-def]
    """The three least squared distances so far, and those to the points below a node but i.

    ``nodes`` and ``near`` are (64,) scratch.
    """
    n_leaves = len(boxes) // 2
    nodes[0], near[0] = top, outside(boxes, top, x, y, z)
    n_nodes = 1
    while n_nodes:
        n_nodes -= 1
        if near[n_nodes] >= c:
            continue
        at = nodes[n_nodes]
        if at >= n_leaves:
            a, b, c = _look(points, at - n_leaves, i, x, y, z, a, b, c)
            continue
        first, second = 2 * at, 2 * at + 1
        d1, d2 = outside(boxes, first, x, y, z), outside(boxes, second, x, y, z)
        if d1 < d2:  # the nearer one is looked into first: it lies on top
            first, second, d1, d2 = second, first, d2, d1
        nodes[n_nodes], near[n_nodes] = first, d1
        nodes[n_nodes + 1], near[n_nodes + 1] = second, d2
        n_nodes += 2
    return a, b, c


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def nearest(points, boxes, i, nodes, near):  # type: ignore[no-untyped-def]
    """The squared distances of point i to the three nearest others, rising."""
    x, y, z = np.float64(points[i, 0]), np.float64(points[i, 1]), np.float64(points[i, 2])
    a, b, c = _look(points, i // _LEAF, i, x, y, z, np.inf, np.inf, np.inf)
    node = len(boxes) // 2 + i // _LEAF
    while node > 1:
        a, b, c = below(points, boxes, node ^ 1, i, x, y, z, a, b, c, nodes, near)
        node >>= 1
    return a, b, c


@njit(cache=True, nogil=True, error_model="numpy")
def _search(points, boxes, spacing, start, stop):  # type: ignore[no-untyped-def]
    """Fill ``spacing[start:stop]``; returns how many that is."""
    nodes, near = np.empty(DEPTH, np.int64), np.empty(DEPTH, np.float64)
    for i in range(start, stop):
        a, b, c = nearest(points, boxes, i, nodes, near)
        spacing[i] = np.sqrt((a + b + c) / 3.0)
    return stop - start
