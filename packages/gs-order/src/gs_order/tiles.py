# SPDX-License-Identifier: Apache-2.0
"""Tiles: the views of an epoch, cut into groups of neighbours, the groups in random order."""

from __future__ import annotations

from typing import Any

import numpy as np

from gs_order.arrays import Array
from gs_order.cameras import features
from gs_order.counter_random import Purpose, random_permutation, random_words

_DIRECTION_WEIGHT = 0.5
_MOST_VIEWS, _SHARE, _LEAST_BATCHES = 256, 8, 4


def default_tile_views(n_views: int, batch_size: int) -> int:
    """An eighth of all views, at most 256, and at least four batches.

    A function of the capture and the batch alone, so that a recipe means the same on every machine.
    """
    return max(_LEAST_BATCHES * batch_size, min(_MOST_VIEWS, n_views // _SHARE))


class Tiler:
    """Cuts all cameras into tiles, in another way each epoch.

    Cameras are points by place and viewing direction. An epoch turns the points at random and
    halves them along the axis in which they are widest, until each part is one tile. One or two
    tiles are smaller, by a random offset, so that no cut stays where it was.

    Every operation is one that IEEE 754 rounds exactly, and sorting is stable: the tiles are the
    same on any machine.

    Args:
        cameras: (V, 4, 4) world-to-camera matrices or (V, 3) centres.
        batch_size: views of a step, B.
        tile_views: views of a tile, w, at least B; whole batches of them make a tile.
        seed: any integer in [0, 2^64).
    """

    def __init__(self, cameras: Array, *, batch_size: int, tile_views: int, seed: int) -> None:
        self._points = features(cameras, _DIRECTION_WEIGHT)
        self._batch_size = batch_size
        self._tile_batches = tile_views // batch_size
        self._seed = seed

    def epoch(self, epoch: int, n_first: int) -> list[np.ndarray[Any, Any]]:
        """The tiles of an epoch, in their order, views shuffled inside.

        Args:
            epoch: e, at least 0.
            n_first: views that come before all tiles, fewer than a batch: they complete the last
                batch of the epoch before.

        Returns:
            int64 arrays of views: the first ones, where there are any, then the tiles. All but the
            last hold whole batches.
        """
        n_views = len(self._points)
        sizes = self._sizes(epoch, n_views - n_first)
        if n_first:
            sizes.insert(0, n_first)
        leaves = random_permutation(len(sizes), self._seed, Purpose.LEAVES, epoch)
        views = random_permutation(n_views, self._seed, Purpose.WITHIN, epoch)
        parts = _halved(self._turned(epoch), views, [sizes[k] for k in leaves])
        return [parts[k] for k in np.argsort(leaves)]

    def _sizes(self, epoch: int, n_views: int) -> list[int]:
        """Views of each tile, in the order of the tiles."""
        n_batches, most = -(-n_views // self._batch_size), self._tile_batches
        if not n_batches:
            return []
        offset = 1 + int(random_words(1, self._seed, Purpose.OFFSET, epoch)[0] % np.uint64(most))
        offset = min(offset, n_batches)
        whole, rest = divmod(n_batches - offset, most)
        batches = [offset, *[most] * whole, *[rest] * (rest > 0)]
        order = random_permutation(len(batches), self._seed, Purpose.TILES, epoch)
        sizes = [batches[k] * self._batch_size for k in order]
        sizes[-1] -= n_batches * self._batch_size - n_views  # its last batch ends in the next epoch
        return sizes

    def _turned(self, epoch: int) -> np.ndarray[Any, Any]:
        """The points, turned at random: places and directions alike."""
        words = random_words(4, self._seed, Purpose.TURN, epoch)
        # Odd multiples of 2^-52, so never zero. Not quite all turns are equally likely.
        w, x, y, z = ((2 * (int(word) >> 12) + 1) * 2.0**-52 - 1 for word in words)
        norm = w * w + x * x + y * y + z * z
        axes = (
            (w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)),
            (2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)),
            (2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z),
        )
        turned = np.empty_like(self._points)
        for start in range(0, self._points.shape[1], 3):
            a, b, c = self._points[:, start : start + 3].T
            for k, (of_a, of_b, of_c) in enumerate(axes):
                turned[:, start + k] = (of_a * a + of_b * b + of_c * c) / norm
        return turned


def _halved(
    points: np.ndarray[Any, Any], views: np.ndarray[Any, Any], sizes: list[int]
) -> list[np.ndarray[Any, Any]]:
    """Views cut into parts of these sizes, each view in the order of ``views`` in its part."""
    if len(sizes) == 1:
        return [views]
    middle = len(sizes) // 2
    axis = int(np.argmax(np.ptp(points[views], axis=0)))
    ranked = np.argsort(points[views, axis], kind="stable")
    is_low = np.zeros(len(views), np.bool_)
    is_low[ranked[: sum(sizes[:middle])]] = True
    low = _halved(points, views[is_low], sizes[:middle])
    return low + _halved(points, views[~is_low], sizes[middle:])
