# SPDX-License-Identifier: Apache-2.0
"""How far apart the points of a region are, with those of other regions around it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gs_train.clouds.regions import GROUP, Codes
from gs_train.scene.neighbours import (
    DEPTH,
    Floats,
    below,
    join_boxes,
    nearest,
    outside,
    point_tree,
)

_FEW = 64
"""Points of a region whose own neighbours may be far away."""


class Groups:
    """The groups of all regions, as the leaves of a tree of boxes.

    Args:
        boxes: of each region, as :func:`gs_train.clouds.regions.group_boxes` has them.

    Attributes:
        first: (regions + 1,) number of the first group of each region.

    Memory: 48 to 96 bytes a group.
    """

    def __init__(self, boxes: list[Floats]) -> None:
        self.first = np.concatenate([[0], np.cumsum([len(own) for own in boxes])]).astype(np.int64)
        n = int(self.first[-1])
        n_leaves = 1 << max(0, n - 1).bit_length()
        self.boxes = np.empty((2 * n_leaves, 6), np.float32)
        self.boxes[n_leaves + n :, :3], self.boxes[n_leaves + n :, 3:] = np.inf, -np.inf
        self.boxes[n_leaves : n_leaves + n] = np.concatenate(boxes)
        join_boxes(self.boxes)

    def __len__(self) -> int:
        return int(self.first[-1])


def region_spacing(
    region: int,
    points: Floats,
    groups: Groups,
    read: Callable[[int, Codes], Floats],
    most: int,
) -> Floats:
    """The spacings of a region's points among all points: the bits of
    :func:`gs_train.scene.neighbours.neighbour_spacing` of the whole cloud.

    Args:
        region: its number.
        points: (P, 3) of the region, in Morton order.
        groups: of all regions.
        read: points of some groups of a region, as :meth:`Spill.points_of`.
        most: points of other regions that are in memory at once.

    Returns:
        (P,) float32.

    Cost: on the calling thread, without Python's lock; 50 bytes a point.
    """
    if not len(points):
        return np.empty(0, np.float32)
    best = np.empty((len(points), 3), np.float64)
    _own(points, point_tree(points), best)
    first, last = int(groups.first[region]), int(groups.first[region + 1])
    limit = best[:, 2] if len(points) > _FEW else _limits(points, groups, first, last, best)
    is_near = np.zeros(len(groups), np.bool_)
    waits = np.zeros(len(points), np.bool_)
    _mark(points, groups.boxes, first, last, limit, is_near, waits)
    waiting = np.flatnonzero(waits)
    for near in _pieces(np.flatnonzero(is_near), max(1, most // GROUP)):
        halo = _points_of(near, groups, read)
        _others(points, waiting, halo, point_tree(halo), best)
    return np.sqrt((best[:, 0] + best[:, 1] + best[:, 2]) / 3.0).astype(np.float32)


def _points_of(near: Codes, groups: Groups, read: Callable[[int, Codes], Floats]) -> Floats:
    """Of some groups of any regions."""
    regions = np.searchsorted(groups.first, near, side="right") - 1
    parts = [
        read(int(region), near[regions == region] - groups.first[region])
        for region in np.unique(regions)
    ]
    return np.concatenate(parts)


def _pieces(near: Codes, most: int) -> list[Codes]:
    return [near[at : at + most] for at in range(0, len(near), most)]


def _limits(
    points: Floats, groups: Groups, first: int, last: int, best: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(P,) squared distances within which a point's three nearest are, of a few points.

    Any other group but the last of a region has three points no further away than its far corner.
    """
    n_leaves = len(groups.boxes) // 2
    is_full = np.ones(len(groups), np.bool_)
    is_full[groups.first[1:] - 1] = False
    is_full[first:last] = False
    boxes = groups.boxes[n_leaves : n_leaves + len(groups)][is_full].astype(np.float64)
    limits = best[:, 2].copy()
    for i, point in enumerate(points.astype(np.float64)):
        far = np.maximum(np.abs(boxes[:, :3] - point), np.abs(boxes[:, 3:] - point))
        nearest_far = (far**2).sum(1).min(initial=np.inf)
        limits[i] = min(limits[i], nearest_far * (1.0 + 2.0**-40))
    return limits


@njit(cache=True, nogil=True, error_model="numpy")
def _own(points, boxes, best):  # type: ignore[no-untyped-def]
    """Fill ``best`` with the three least squared distances within the region."""
    nodes, near = np.empty(DEPTH, np.int64), np.empty(DEPTH, np.float64)
    for i in range(len(points)):
        best[i, 0], best[i, 1], best[i, 2] = nearest(points, boxes, i, nodes, near)


@njit(cache=True, nogil=True, error_model="numpy")
def _mark(points, boxes, first, last, limit, is_near, waits):  # type: ignore[no-untyped-def]
    """Mark the groups but [first, last) that may have a point nearer than the limits, and the
    points that such a group is near to."""
    n_leaves = len(boxes) // 2
    nodes = np.empty(DEPTH, np.int64)
    firsts, widths = np.empty(DEPTH, np.int64), np.empty(DEPTH, np.int64)
    for i in range(len(points)):
        x, y, z = np.float64(points[i, 0]), np.float64(points[i, 1]), np.float64(points[i, 2])
        nodes[0], firsts[0], widths[0], top = 1, 0, n_leaves, 1
        while top:
            top -= 1
            node, start, width = nodes[top], firsts[top], widths[top]
            if start >= first and start + width <= last:
                continue  # the region's own
            if outside(boxes, node, x, y, z) >= limit[i]:
                continue
            if node >= n_leaves:
                if start < len(is_near):
                    is_near[start] = waits[i] = True
                continue
            half = width // 2
            nodes[top], firsts[top], widths[top] = 2 * node, start, half
            top += 1
            nodes[top], firsts[top], widths[top] = 2 * node + 1, start + half, half
            top += 1


@njit(cache=True, nogil=True, error_model="numpy")
def _others(points, waiting, halo, boxes, best):  # type: ignore[no-untyped-def]
    """Join ``best`` of some points with the distances to the points of a halo."""
    nodes, near = np.empty(DEPTH, np.int64), np.empty(DEPTH, np.float64)
    for i in waiting:
        x, y, z = np.float64(points[i, 0]), np.float64(points[i, 1]), np.float64(points[i, 2])
        a, b, c = best[i, 0], best[i, 1], best[i, 2]
        a, b, c = below(halo, boxes, 1, -1, x, y, z, a, b, c, nodes, near)
        best[i, 0], best[i, 1], best[i, 2] = a, b, c
