# SPDX-License-Identifier: Apache-2.0
"""How much each view was to draw, and the order of a batch's views by that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gs_train.ranks.view_history import ViewHistory
from gs_train.renderers import View

LAG = 3
"""An order reads counts of steps that are at least so many steps old: a rank knows them by then,
whatever ranks and lookahead are doing."""

_MOST_STEPS = 2**62
_NAMES = ("views", "steps", "counts", "step")


class ViewCosts:
    """Tile intersections of each view when all its pixels were last drawn at once.

    The canonical order of a batch's views is the falling order of these counts: the largest view
    first, so that ranks that share a batch end together. Equal counts keep the batch's order, and
    the number of pixels stands for a view that has not been drawn.

    Attributes:
        step: batches so far.
    """

    def __init__(self) -> None:
        self._counts = ViewHistory[int](LAG)

    @property
    def step(self) -> int:
        return self._counts.step

    def order(self, views: Sequence[View], *, ahead: int = 0) -> np.ndarray:
        """(B,) int64: the canonical order of the views of a batch.

        Args:
            ahead: batches between it and the batch that begins or runs, at most `LAG` - 1.
        """
        costs = np.array([self.work(view, ahead=ahead) for view in views], np.int64)
        return np.argsort(-costs, kind="stable")

    def work(self, view: View, *, ahead: int = 0) -> int:
        """What it takes to draw a view of such a batch: its count, or its pixels."""
        known = self.known(view, ahead=ahead)
        return view.width * view.height if known is None else known

    def known(self, view: View, *, ahead: int = 0) -> int | None:
        """Its count, of a step that is old enough for all ranks to know; None: there is none.

        Args:
            ahead: see `order`.
        """
        return self._counts.known(view.name, ahead=ahead)

    def note(self, view: View, n_intersections: int, *, step: int | None = None) -> None:
        """All pixels of a view were drawn.

        Args:
            step: of its batch, of those after the view was last noted; None: the present one.
        """
        self._counts.note(view.name, n_intersections, step=step)

    def end_batch(self) -> None:
        """Count the batch."""
        self._counts.step += 1

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint: ``views``, ``steps``, ``counts`` (M,) int64, ``step`` () int64."""
        table = torch.tensor(self._counts.entries(), dtype=torch.int64).view(-1, 3)
        return dict(zip(_NAMES, (*table.unbind(1), torch.tensor(self.step)), strict=True))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave; empty is from before there were costs.

        Raises:
            ValueError: other names, types or shapes.
        """
        if not tensors:
            return
        if set(tensors) != set(_NAMES):
            raise ValueError(f"tensors must be {sorted(_NAMES)}, got {sorted(tensors)}")
        shapes = {tuple(tensors[name].shape) for name in _NAMES[:3]}
        is_flat = len(shapes) == 1 and len(next(iter(shapes))) == 1
        is_whole = all(tensor.dtype == torch.int64 for tensor in tensors.values())
        if not is_flat or not is_whole or tensors["step"].ndim:
            raise ValueError("views, steps and counts must be (M,) int64 and step () int64")
        step, (_, steps, counts) = int(tensors["step"]), (tensors[name] for name in _NAMES[:3])
        is_sound = 0 <= step < _MOST_STEPS and bool(((steps >= 0) & (steps < step)).all())
        if not is_sound or bool((counts < 0).any()):
            raise ValueError("steps must be at least 0 and below step, counts at least 0")
        self._counts.load(step, zip(*(tensors[name].tolist() for name in _NAMES[:3])))
