# SPDX-License-Identifier: Apache-2.0
"""Tile intersections of the columns of each view, by which left-over views are cut."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gs_train.ranks.view_history import ViewHistory

_NAMES = ("views", "steps", "sizes", "counts", "step")


class ViewColumns:
    """Counts of each view when all its columns of tiles were last drawn, in one piece or in crops.

    All ranks note the same counts, and read counts that are old enough for all ranks to have them.

    Args:
        lag: steps after which all ranks have the counts of a step.

    Attributes:
        step: batches so far.
    """

    def __init__(self, lag: int) -> None:
        self._counts = ViewHistory[np.ndarray](lag)

    @property
    def step(self) -> int:
        return self._counts.step

    @step.setter
    def step(self, step: int) -> None:
        self._counts.step = step

    def known(self, view: str, *, ahead: int = 0) -> np.ndarray | None:
        """(C,) int64 of the view of this name; None: there are no counts yet.

        Args:
            ahead: see `ViewHistory.known`.
        """
        return self._counts.known(view, ahead=ahead)

    def note(self, view: str, counts: ArrayLike, *, step: int) -> None:
        """All columns of a view were drawn.

        Args:
            view: its name.
            counts: (C,) at least 0.
            step: in which they were drawn.

        Raises:
            ValueError: there are no columns, or a count is below 0.
        """
        found = np.array(counts, np.int64)
        if found.ndim != 1 or not len(found) or found.min() < 0:
            raise ValueError(f"counts must be (C,) and at least 0, got {counts!r}")
        self._counts.note(view, found, step=step)

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint: ``views``, ``steps``, ``sizes`` (M,), ``counts`` (sum of sizes,) and
        ``step`` (), all int64."""
        rows = self._counts.entries()
        table = [[number, step, len(counts)] for number, step, counts in rows]
        columns = torch.tensor(table, dtype=torch.int64).view(-1, 3).unbind(1)
        counts = np.concatenate([np.zeros(0, np.int64), *(counts for _, _, counts in rows)])
        values = (*columns, torch.from_numpy(counts), torch.tensor(self.step))
        return dict(zip(_NAMES, values, strict=True))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave; empty is from before there were counts.

        Raises:
            ValueError: other names, types or shapes.
        """
        if not tensors:
            return
        if set(tensors) != set(_NAMES):
            raise ValueError(f"tensors must be {sorted(_NAMES)}, got {sorted(tensors)}")
        views, steps, sizes, counts, step = (tensors[name] for name in _NAMES)
        is_whole = all(tensor.dtype == torch.int64 for tensor in tensors.values())
        is_flat = views.ndim == 1 and views.shape == steps.shape == sizes.shape
        if not (is_whole and is_flat and counts.ndim == 1 and step.ndim == 0):
            raise ValueError("views, steps and sizes must be (M,) int64, counts (n,), step ()")
        if bool((sizes < 0).any()) or int(sizes.sum()) != len(counts) or int(step) < 0:
            raise ValueError("sizes must add up to the number of counts, and step be at least 0")
        parts = np.split(counts.numpy().copy(), sizes.cumsum(0)[:-1].tolist())
        self._counts.load(int(step), zip(views.tolist(), steps.tolist(), parts))
