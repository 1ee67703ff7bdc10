# SPDX-License-Identifier: Apache-2.0
"""The views of each optimizer step: a function of the seed and the step, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from gs_order.arrays import Array
from gs_order.checks import sequence, whole_number, word
from gs_order.trajectory import trajectory

_SHUFFLE, _CUT, _CLUSTERS = range(3)
"""What a random number is for; different purposes never share one."""


class ViewSampler:
    """Views of every optimizer step, without state.

    Epoch e is a permutation of all views, keyed by (seed, e). Laid end to end the epochs form one
    endless sequence; step t takes its places t * batch_size and on. So every view comes once an
    epoch, a batch may run across the border of two epochs, no view is dropped, and training
    resumes at any step by asking for that step.

    Modes:
        ``"shuffle"``: each epoch is a uniform random permutation.
        ``"local"``: the cameras are put on a short path once (`trajectory`). Each epoch cuts the
            path at random into runs of ``cluster_size`` neighbours and shuffles the runs. A batch
            then shares most of its visible Gaussians, while the sequence of batches stays random.
            Runs start where batches start, so that a batch is whole runs (with the default size:
            one run) except where two epochs meet.

    As a ``batch_sampler`` of a torch DataLoader, the sampler yields the batches of the steps from
    ``first_step`` on: ``n_steps`` batches, or batches without end.

    Args:
        n_views: V, at least 1; may be left out when ``cameras`` is given.
        batch_size: views of one step, at least 1; more than V repeats views within a batch.
        seed: any integer in [0, 2^64).
        mode: as above.
        cameras: (V, 4, 4) world-to-camera matrices or (V, 3) centres; needed by ``"local"``.
        cluster_size: views of one run in local mode; ``batch_size`` when None.
        first_step: first step of an iteration.
        n_steps: batches that iteration yields; endless when None.

    Raises:
        ValueError: a number out of its range, cameras that do not fit, or an unknown mode.

    Cost: O(V) random numbers and a sort for the first step of an epoch; microseconds after. The
        sampler remembers the last two epochs' permutations. Not for use from several threads at
        once.

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
        mode: Literal["shuffle", "local"] = "shuffle",
        cameras: Array | None = None,
        cluster_size: int | None = None,
        first_step: int = 0,
        n_steps: int | None = None,
    ) -> None:
        word("mode", mode, ("shuffle", "local"))
        if cameras is None and (n_views is None or mode == "local"):
            what = "n_views" if n_views is None else "cameras"
            raise ValueError(f"{what} must be given for mode {mode!r}, got None")
        if n_views is None:
            n_views = len(sequence("cameras", cameras))
        if cameras is not None and len(sequence("cameras", cameras)) != n_views:
            raise ValueError(f"cameras must be one for each of {n_views} views, got {len(cameras)}")
        cluster_size = batch_size if cluster_size is None else cluster_size
        self.n_views = whole_number("n_views", n_views, least=1)
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        self.seed = whole_number("seed", seed, most=2**64 - 1)
        self.mode = mode
        self.cluster_size = whole_number("cluster_size", cluster_size, least=1)
        self.first_step = whole_number("first_step", first_step)
        self.n_steps = None if n_steps is None else whole_number("n_steps", n_steps)
        self._path = trajectory(cameras) if mode == "local" else None
        self._remembered: dict[int, np.ndarray[Any, Any]] = {}

    def __repr__(self) -> str:
        return (
            f"ViewSampler(n_views={self.n_views}, batch_size={self.batch_size}, "
            f"seed={self.seed}, mode={self.mode!r})"
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
            made = self._shuffled(epoch) if self._path is None else self._local(epoch, self._path)
            self._remembered[epoch] = made
        return self._remembered[epoch]

    def _shuffled(self, epoch: int) -> np.ndarray[Any, Any]:
        return random_permutation(self.n_views, self.seed, _SHUFFLE, epoch)

    def _local(self, epoch: int, path: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        # The path is closed to a ring and cut anywhere, so that every view is as likely to begin a
        # run as to be within one. What completes the last epoch's batch comes first.
        cut = int(random_words(1, self.seed, _CUT, epoch)[0] % np.uint64(self.n_views))
        ring = np.roll(path, -cut)
        head = min(-epoch * self.n_views % self.batch_size, self.n_views)
        n_runs = (self.n_views - head) // self.cluster_size
        tail = head + n_runs * self.cluster_size
        runs = ring[head:tail].reshape(n_runs, self.cluster_size)
        shuffled = runs[random_permutation(n_runs, self.seed, _CLUSTERS, epoch)].ravel()
        return np.concatenate([ring[:head], shuffled, ring[tail:]])


def random_words(n: int, seed: int, purpose: int, index: int) -> np.ndarray[Any, Any]:
    """(n,) uint64 from the counter-based generator Philox, keyed by the other arguments.

    numpy promises the raw stream of a bit generator, though not that of the methods built on it,
    for all versions: https://numpy.org/neps/nep-0019-rng-policy.html
    """
    key, counter = np.array([seed, purpose], np.uint64), np.array([0, 0, index, 0], np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(n)


def random_permutation(n: int, seed: int, purpose: int, index: int) -> np.ndarray[Any, Any]:
    """(n,) int64 permutation: the order of n random words, equal ones (2^-64) by number."""
    return np.argsort(random_words(n, seed, purpose, index), kind="stable").astype(np.int64)
