# SPDX-License-Identifier: Apache-2.0
"""The views of each optimizer step: a function of the seed and the step, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np

from gs_order.arrays import Array
from gs_order.checks import sequence, whole_number, word
from gs_order.counter_random import Purpose, random_permutation
from gs_order.tiles import Tiler, default_tile_views

Order = Literal["shuffle", "tiles"]


class ViewSampler:
    """Views of every optimizer step, without state.

    Epoch e is a permutation of all views, keyed by (seed, e). Laid end to end the epochs form one
    endless sequence; step t takes its places t * batch_size and on. So every view comes once an
    epoch, a batch may run across the border of two epochs, no view is dropped, and training
    resumes at any step by asking for that step.

    Orders:
        ``"shuffle"``: each epoch is a uniform random permutation.
        ``"tiles"``: each epoch cuts the cameras anew into tiles of neighbours in place and viewing
            direction, puts the tiles into random order, and shuffles the views inside. The views
            of a tile share most of their visible Gaussians, so a cache that holds the Gaussians of
            a tile reads each of them about once an epoch. A batch lies within a tile, except where
            two epochs meet. Where one tile holds all views, this is ``"shuffle"``.

    As a ``batch_sampler`` of a torch DataLoader, the sampler yields the batches of the steps from
    ``first_step`` on: ``n_steps`` batches, or batches without end.

    Args:
        n_views: V, at least 1; may be left out when ``cameras`` is given.
        batch_size: views of one step, at least 1; more than V repeats views within a batch.
        seed: any integer in [0, 2^64).
        order: as above.
        cameras: (V, 4, 4) world-to-camera matrices or (V, 3) centres; needed by ``"tiles"``.
        tile_views: most views of a tile, at least ``batch_size``; whole batches of them are used.
            None: an eighth of all views, at most 256, and at least four batches.
        first_step: first step of an iteration.
        n_steps: batches that iteration yields; endless when None.

    Raises:
        ValueError: a number out of its range, cameras that do not fit, an unknown order, or
            ``tile_views`` without tiles.

    Cost: O(V) random numbers and a sort, with tiles a sort for each halving, for the first step of
        an epoch; microseconds after. The sampler remembers the last two epochs' permutations. Not
        for use from several threads at once.

    >>> sampler = ViewSampler(5, 2, seed=7)
    >>> sorted(np.concatenate([sampler.batch(step) for step in range(5)]).tolist())
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    """

    def __init__(
        self,
        n_views: int | None = None,
        batch_size: int = 1,
        *,
        seed: int = 0,
        order: Order = "shuffle",
        cameras: Array | None = None,
        tile_views: int | None = None,
        first_step: int = 0,
        n_steps: int | None = None,
    ) -> None:
        word("order", order, get_args(Order))
        if cameras is None and (n_views is None or order == "tiles"):
            what = "n_views" if n_views is None else "cameras"
            raise ValueError(f"{what} must be given for order {order!r}, got None")
        if n_views is None:
            n_views = len(sequence("cameras", cameras))
        if cameras is not None and len(sequence("cameras", cameras)) != n_views:
            raise ValueError(f"cameras must be one for each of {n_views} views, got {len(cameras)}")
        if tile_views is not None and order != "tiles":
            raise ValueError(f"tile_views must be left out for order {order!r}, got {tile_views}")
        self.n_views = whole_number("n_views", n_views, least=1)
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        self.seed = whole_number("seed", seed, most=2**64 - 1)
        self.order = order
        self.first_step = whole_number("first_step", first_step)
        self.n_steps = None if n_steps is None else whole_number("n_steps", n_steps)
        self._tiler: Tiler | None = None
        if order == "tiles":
            if tile_views is None:
                tile_views = default_tile_views(self.n_views, self.batch_size)
            tile_views = whole_number("tile_views", tile_views, least=self.batch_size)
            tiler = Tiler(
                cameras, batch_size=self.batch_size, tile_views=tile_views, seed=self.seed
            )
            self._tiler = tiler if tile_views < self.n_views else None
        self._remembered: dict[int, np.ndarray[Any, Any]] = {}

    def __repr__(self) -> str:
        return (
            f"ViewSampler(n_views={self.n_views}, batch_size={self.batch_size}, "
            f"seed={self.seed}, order={self.order!r})"
        )

    def batch(self, step: int) -> np.ndarray[Any, Any]:
        """Views of one optimizer step.

        Args:
            step: t, at least 0.

        Returns:
            (batch_size,) int64 numpy, in the order of the sequence.

        Raises:
            ValueError: a negative step.
        """
        step = whole_number("step", step, most=2**62 // self.batch_size)
        start = step * self.batch_size
        views = np.empty(self.batch_size, np.int64)
        filled = 0
        while filled < self.batch_size:
            epoch, place = divmod(start + filled, self.n_views)
            taken = min(self.n_views - place, self.batch_size - filled)
            views[filled : filled + taken] = self._epoch(epoch)[place : place + taken]
            filled += taken
        return views

    def epoch(self, epoch: int) -> np.ndarray[Any, Any]:
        """All views in the order of one epoch.

        Args:
            epoch: e, at least 0.

        Returns:
            (V,) int64 numpy permutation, the caller's own.

        Raises:
            ValueError: a negative epoch.
        """
        epoch = whole_number("epoch", epoch)
        return self._epoch(epoch).copy()

    def tiles(self, epoch: int) -> list[np.ndarray[Any, Any]]:
        """The same views tile by tile.

        Args:
            epoch: e, at least 0.

        Returns:
            int64 numpy arrays that make :meth:`epoch` end to end. With ``"tiles"`` and a batch
            that runs across the border to the epoch before, its views come first, as one array.

        Raises:
            ValueError: a negative epoch.
        """
        return self._tiles(whole_number("epoch", epoch))

    def __iter__(self) -> Iterator[list[int]]:
        """Batches from ``first_step`` on, as lists of ints."""
        step = self.first_step
        while self.n_steps is None or step < self.first_step + self.n_steps:
            yield self.batch(step).tolist()
            step += 1

    def __len__(self) -> int:
        """``n_steps``; a TypeError when iteration has no end."""
        if self.n_steps is None:
            raise TypeError("n_steps must be given for a sampler with a length, got None")
        return self.n_steps

    def _epoch(self, epoch: int) -> np.ndarray[Any, Any]:
        if epoch not in self._remembered:
            while len(self._remembered) >= 2:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[epoch] = np.concatenate(self._tiles(epoch))
        return self._remembered[epoch]

    def _tiles(self, epoch: int) -> list[np.ndarray[Any, Any]]:
        if self._tiler is None:
            return [random_permutation(self.n_views, self.seed, Purpose.SHUFFLE, epoch)]
        n_first = min(-epoch * self.n_views % self.batch_size, self.n_views)
        return self._tiler.epoch(epoch, n_first)
