# SPDX-License-Identifier: Apache-2.0
"""Lists of rows that coming batches may see, found while batches before them render.

A list is of use for what moves rows: what a batch sees is decided when the batch begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

import gs_cull
from gs_train.engine.microbatches import Microbatch, Seen, look, look_at
from gs_train.engine.settings import StepSettings
from gs_train.machine.lanes import Lanes
from gs_train.renderers import Renderer, View
from gs_train.rows.attributes import GEOMETRY
from gs_train.rows.operations import Model


@dataclass(frozen=True, eq=False)
class EarlyList:
    """What a batch may see, by the geometry of a batch before it.

    Attributes:
        names: of the batch's views, in its order.
        seen: its views and all rows that each may see.
        edits: of the model when it was found.
        rates: the most that the steps between may take. Betas stay the same while rows sleep.
    """

    names: tuple[str, ...]
    seen: Seen
    edits: int
    rates: Mapping[str, float]

    def allows(self, settings: StepSettings) -> bool:
        """Whether a step between moves no row further than was thought."""
        return all(settings.rates[name] <= self.rates[name] for name in GEOMETRY)


class Lookahead:
    """Finds early lists where there is a bound on what the steps between can move.

    One thread at a time calls it.

    Args:
        model, renderer: as `Engine`'s.
        lanes: of the engine; lists are found on ``cull``.
        cut: gives the microbatches of a batch, of its views and how many batches ahead of the
            present one it is; None: the views.
    """

    def __init__(
        self,
        model: Model,
        renderer: Renderer,
        lanes: Lanes,
        cut: Callable[[Sequence[View], int], Sequence[Microbatch]] | None = None,
    ) -> None:
        self._cut = cut
        self._model = model
        self._renderer = renderer
        self._lanes = lanes
        self._lists: list[EarlyList] = []  # of the next batch and the one after it
        self._lasts = False  # the list of the batch that runs held until it began
        self._culled: torch.cuda.Event | None = None

    def take(self, views: Sequence[View], settings: StepSettings) -> EarlyList | None:
        """The list of a batch that begins, where one was found and holds.

        Args:
            settings: of the batch's step.
        """
        lists, self._lists = self._lists, []
        self._lasts = (
            bool(lists)
            and lists[0].edits == self._model.edits
            and lists[0].names == names_of(views)
        )
        if not self._lasts:
            return None
        if all(later.allows(settings) for later in lists[1:]):
            self._lists = lists[1:]
        return lists[0]

    def find(
        self,
        k: int,
        upcoming: Sequence[Sequence[View]],
        settings: StepSettings,
        step: int,
        edited: torch.cuda.Event | None,
    ) -> EarlyList | None:
        """The list of the batch that follows (k = 0) or of the batch after it (k = 1), found where
        that has not been done.

        Args:
            upcoming: views of the batches that follow, as far as they are known.
            settings: of the step that runs.
            step: its number, from 1.
            edited: behind the last change of the geometry.

        There is none where the device's memory does not suffice beside what is being drawn; and
        for k = 1 while every step edits rows, as MCMC's noise does: what is found that early is
        stale before it is used.
        """
        if k and not (self._lists and self._lasts):
            return None
        views = upcoming[k] if k < len(upcoming) else ()
        names = names_of(views)
        if k < len(self._lists) and (not views or self._lists[k].names == names):
            return self._lists[k]
        del self._lists[k:]
        # Losses of the rows that a batch sees tell these rows from others.
        if not views or settings.regularises_seen:
            return None
        inflate = largest_move(settings.rates, settings.betas, step, k + 1)
        if inflate is None:
            return None
        self._lanes.wait("cull", edited)
        try:
            with self._lanes.on("cull"):
                seen = self._look(views, k + 1, inflate)
        except torch.cuda.OutOfMemoryError:
            self._culled = self._lanes.mark("cull")  # the geometry may still be read
            return None
        self._lists.append(EarlyList(names, seen, self._model.edits, settings.rates))
        cameras = seen.cameras
        self._lanes.share("compute", seen.ids, seen.mask, cameras.viewmats, cameras.Ks)
        self._culled = self._lanes.mark("cull")
        return self._lists[k]

    def _look(self, views: Sequence[View], ahead: int, inflate: gs_cull.Inflate) -> Seen:
        if self._cut is None:
            return look(self._model.params, views, self._renderer, inflate=inflate)
        cut = self._cut(views, ahead)
        return look_at(self._model.params, cut, self._renderer, inflate=inflate, whole_tiles=True)

    def looked(self) -> torch.cuda.Event | None:
        """An event behind everything that has read the geometry since this was last asked."""
        culled, self._culled = self._culled, None
        return culled


def names_of(views: Sequence[View]) -> tuple[str, ...]:
    """Of views, which are unique in a capture."""
    return tuple([view.name for view in views])


def largest_move(
    rates: Mapping[str, float], betas: tuple[float, float], step: int, n_steps: int = 1
) -> gs_cull.Inflate | None:
    """Bounds on what ``n_steps`` of Adam, the first of them ``step``, can add to one component.

    Adam moves by lr m^ / sqrt(v^) at most. By Cauchy and Schwarz
    |m| <= sqrt(sum over k of (1 - b1)^2 b1^(2 k) / ((1 - b2) b2^k)) sqrt(v), a geometric series:

        |step| <= lr (1 - b1) / sqrt((1 - b2) (1 - b1^2 / b2)) sqrt(1 - b2^t) / (1 - b1^t)

    which is 7.3 lr for the usual betas and large t, and several steps add up. It holds whatever a
    row's history, epsilon and forgotten moments included, for rates up to those given.

    Returns:
        None where there is no bound: b1^2 >= b2.
    """
    b1, b2 = betas
    if b1 * b1 >= b2:
        return None
    correction = sum(math.sqrt(1.0 - b2**t) / (1.0 - b1**t) for t in range(step, step + n_steps))
    reach = (1.0 - b1) / math.sqrt((1.0 - b2) * (1.0 - b1 * b1 / b2)) * correction
    # Rounding of the step itself and of the value it is added to.
    reach *= 1.0 + 1e-5
    return gs_cull.Inflate(**{name: rates[name] * reach for name in GEOMETRY})
