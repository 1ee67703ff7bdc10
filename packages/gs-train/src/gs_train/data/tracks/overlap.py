# SPDX-License-Identifier: Apache-2.0
"""Which images of a capture share points, and whether all hang together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse
from numba import njit
from numpy.typing import NDArray

_MOST_COMPARED = 200_000
"""Points whose images are compared with each other; of more points, every so many-th."""

_BLOCK = 256  # images that are compared with all at once


@dataclass(frozen=True, eq=False)
class Overlap:
    """What images share.

    Attributes:
        most_shared: (V,) int64 points that an image shares with its neighbour, the image that it
            shares most with; where ``every`` is not 1, ``every`` times the points that were
            compared.
        neighbour: (V,) int64 index of that image; -1 where no point is shared.
        every: every so many-th point was compared.
        components: (V,) int64: images with the same number are linked by points, over other images
            perhaps; -1 for an image that observes none. Numbers count from 0, the largest
            component first.
    """

    most_shared: NDArray[np.int64]
    neighbour: NDArray[np.int64]
    every: int
    components: NDArray[np.int64]


class OverlapCount:
    """Takes the points of one image after the other.

    Args:
        n_images, n_points: of the model.

    Memory: 4 bytes a point, and 4 bytes for each observation of a point that is compared.
    """

    def __init__(self, n_images: int, n_points: int) -> None:
        self._n_images = n_images
        self._every = max(1, -(-n_points // _MOST_COMPARED))
        self._n_compared = -(-n_points // self._every)
        self._first = np.full(n_points, -1, np.int32)  # image that observed each point first
        self._parents = np.arange(n_images, dtype=np.int32)
        self._observes = np.zeros(n_images, bool)
        self._compared: dict[int, NDArray[np.int32]] = {}

    def add(self, image: int, rows: NDArray[np.int64]) -> None:
        """The image observes the points in these rows, in any order and perhaps twice."""
        if len(rows):
            self._observes[image] = True
            _join(image, rows, self._first, self._parents)
        mine = rows[rows % self._every == 0] // self._every
        self._compared[image] = np.unique(mine).astype(np.int32)

    def result(self) -> Overlap:
        """What all images share that were added."""
        most, neighbour = self._neighbours()
        return Overlap(most * self._every, neighbour, self._every, self._components())

    def _neighbours(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        most, neighbour = np.zeros(self._n_images, np.int64), np.full(self._n_images, -1)
        none = np.empty(0, np.int32)
        rows = [self._compared.get(image, none) for image in range(self._n_images)]
        bounds = np.concatenate([[0], np.cumsum([len(each) for each in rows])])
        columns = np.concatenate(rows) if rows else none
        shape = (self._n_images, max(1, self._n_compared))
        sees = scipy.sparse.csr_matrix((np.ones(len(columns), np.int32), columns, bounds), shape)
        seen_by = sees.T.tocsc()
        for start in range(0, self._n_images, _BLOCK):
            shared = (sees[start : start + _BLOCK] @ seen_by).toarray()
            own = np.arange(len(shared))
            shared[own, start + own] = 0
            part = slice(start, start + len(shared))
            most[part] = shared.max(axis=1)
            neighbour[part] = np.where(most[part] > 0, shared.argmax(axis=1), -1)
        return most, neighbour

    def _components(self) -> NDArray[np.int64]:
        roots = np.array([_root(self._parents, i) for i in range(self._n_images)], np.int64)
        found, counts = np.unique(roots[self._observes], return_counts=True)
        places = {root: k for k, root in enumerate(found[np.argsort(-counts, kind="stable")])}
        return np.array(
            [
                places[root] if sees else -1
                for root, sees in zip(roots.tolist(), self._observes.tolist())
            ],
            np.int64,
        )


@njit(cache=True, nogil=True)
def _root(parents, image):  # type: ignore[no-untyped-def]
    while parents[image] != image:
        parents[image] = parents[parents[image]]
        image = parents[image]
    return image


@njit(cache=True, nogil=True)
def _join(image, rows, first, parents):  # type: ignore[no-untyped-def]
    """Link the image with the first one that observed each of the points."""
    own = _root(parents, image)
    for row in rows:
        if first[row] < 0:
            first[row] = image
            continue
        other = _root(parents, first[row])
        if other != own:
            parents[other] = own
