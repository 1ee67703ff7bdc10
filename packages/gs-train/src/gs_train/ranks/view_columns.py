# SPDX-License-Identifier: Apache-2.0
"""Tile intersections of the columns of each view, by which left-over views are cut."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gs_train.names import number_of

_UNKNOWN = -1
_NAMES = ("views", "steps", "sizes", "counts", "step")


class ViewColumns:
    """Counts of each view when all its columns of tiles were last drawn, in one piece or in crops.

    Crops of a view meet within a column of tiles, and each draws the whole column: counts of crops
    join without a gap. All ranks note the same counts, and read counts that are old enough for all
    ranks to have them.

    Args:
        lag: steps after which all ranks have the counts of a step.

    Attributes:
        step: batches so far.
    """

    def __init__(self, lag: int) -> None:
        self.step = 0
        self._lag = lag
        self._counts: dict[int, dict[int, np.ndarray]] = {}  # of a view's number, by step

    def known(self, view: str, *, ahead: int = 0) -> np.ndarray | None:
        """(C,) int64 of the view of this name; None: there are no counts yet.

        Args:
            ahead: batches between the one that wants to know and the present one, less than the
                lag.
        """
        by_step = self._counts.get(number_of(view), {})
        newest = self._newest(by_step, ahead)
        return None if newest is None else by_step[newest]

    def note(self, view: str, n_columns: int, first: int, counts: ArrayLike, *, step: int) -> None:
        """Some columns of a view were drawn.

        Args:
            view: its name.
            n_columns: C, of the view.
            first: of the columns that were drawn.
            counts: (n,) at least 0.
            step: in which they were drawn.

        Raises:
            ValueError: the columns are not of the view, or a count is below 0.
        """
        found = np.array(counts, np.int64)
        if found.ndim != 1 or not 0 <= first <= first + len(found) <= n_columns:
            raise ValueError(
                f"counts must be of columns below {n_columns}, got {found.shape} from {first} on"
            )
        if (found < 0).any():
            raise ValueError(f"counts must be at least 0, got {found.min()}")
        by_step = self._counts.setdefault(number_of(view), {})
        whole = by_step.get(step)
        if whole is None or len(whole) != n_columns:
            whole = by_step[step] = np.full(n_columns, _UNKNOWN, np.int64)
        whole[first : first + len(found)] = found
        self._forget(by_step)

    def end_batch(self) -> None:
        """Count the batch."""
        self.step += 1

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint: ``views``, ``steps``, ``sizes`` (M,), ``counts`` (sum of sizes,) and
        ``step`` (), all int64."""
        rows = []
        for number, by_step in self._counts.items():
            self._forget(by_step)
            rows += [(number, step, counts) for step, counts in by_step.items()]
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
        self.step = int(step)
        self._counts = {}
        ends = [0, *itertools.accumulate(sizes.tolist())]
        for k, (number, at) in enumerate(zip(views.tolist(), steps.tolist())):
            part = counts[ends[k] : ends[k + 1]].numpy().copy()
            self._counts.setdefault(number, {})[at] = part

    def _newest(self, by_step: Mapping[int, np.ndarray], ahead: int = 0) -> int | None:
        """The last step that is old enough and has all columns."""
        old = (step for step in by_step if self._is_old(step, ahead))
        return max((step for step in old if (by_step[step] != _UNKNOWN).all()), default=None)

    def _is_old(self, step: int, ahead: int = 0) -> bool:
        return step <= self.step + ahead - self._lag

    def _forget(self, by_step: dict[int, np.ndarray]) -> None:
        """Drop what is never read any more."""
        kept = self._newest(by_step)
        for step in [step for step in by_step if self._is_old(step) and step != kept]:
            del by_step[step]
