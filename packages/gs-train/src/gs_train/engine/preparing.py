# SPDX-License-Identifier: Apache-2.0
"""What a batch sees, in which order and what moves: found while the batch before renders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

import gs_order
from gs_cull import Inflate
from gs_train.engine.ahead import pack, unpack
from gs_train.engine.backend import StepSettings
from gs_train.engine.early import largest_move
from gs_train.engine.lanes import Lanes
from gs_train.engine.limits import Limits
from gs_train.engine.microbatches import Seen, least_shared, look
from gs_train.engine.model import OffloadedGaussians
from gs_train.engine.presets import Preset
from gs_train.renderers import Renderer, View

AHEAD = 1
"""Microbatches that loads run ahead of rendering."""


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch that can run.

    Attributes:
        names: of its views.
        edits: of the model when it was looked at.
        seen: its microbatches and their rows.
        order: of the microbatches.
        plan: what moves when the host updates its rows; None where the device does.
    """

    names: tuple[str, ...]
    edits: int
    seen: Seen
    order: np.ndarray
    plan: gs_order.Plan | None

    def tensors(self) -> Iterator[Tensor]:
        """What rendering reads of it."""
        yield from (self.seen.ids, self.seen.mask)
        if self.plan is not None:
            for lists in (self.plan.ids, self.plan.positions, self.plan.slots or {}):
                yield from (part.values for part in lists.values())


class Preparing:
    """Prepares batches, early where there is a bound on what the step between can move.

    Args:
        model, renderer, preset, limits, most_share, seed: as `Engine`'s.
        lanes: of the engine.
    """

    def __init__(
        self,
        model: OffloadedGaussians,
        renderer: Renderer,
        preset: Preset,
        limits: Limits,
        lanes: Lanes,
        *,
        most_share: float | None,
        seed: int,
    ) -> None:
        self._model = model
        self._renderer = renderer
        self._preset = preset
        self._limits = limits
        self._lanes = lanes
        self._most_share = most_share
        self._seed = seed
        self._expected: dict[str, Tensor] = {}
        self._culled: torch.cuda.Event | None = None
        self.next: Batch | None = None

    def batch(self, views: Sequence[View]) -> Batch:
        """The batch as it was prepared early, when that still holds, or prepared now."""
        early, self.next = self.next, None
        if early is not None and early.names == _names(views) and self._holds(early):
            return early
        return self._resumed(views) or self._prepare(views, None, None)

    def look_ahead(
        self,
        upcoming: Sequence[View],
        settings: StepSettings,
        edited: torch.cuda.Event | None,
        late: Tensor | None,
    ) -> None:
        """Prepare the next batch on the ``cull`` lane, where that is possible. May run on another
        thread than the rest, but at no time beside it.

        Args:
            upcoming: its views, if they are known.
            settings: of the step that comes before it.
            edited: behind the last change of the geometry.
            late: (R,) sorted rows that the batch before updates last: it begins with a view that
                waits for few of them.
        """
        is_sparse = self._model.host.adam.semantics == "sparse"
        if not upcoming or not self._preset.early_cull or is_sparse:
            return
        step = self._model.host.adam.step_count
        inflate = largest_move(settings.rates, settings.betas, step)
        if inflate is None:
            return
        self._lanes.wait("cull", edited)
        with self._lanes.on("cull"):
            self.next = self._prepare(upcoming, inflate, late)
        self._lanes.share("compute", *self.next.tensors())
        self._culled = self._lanes.mark("cull")

    def wait_to_edit(self) -> None:
        """Later changes of the geometry wait until it has been looked at."""
        self._lanes.wait("compute", self._culled)
        self._culled = None

    def ahead(self) -> dict[str, Tensor]:
        """What a checkpoint needs of the next batch."""
        early = self.next
        return {} if early is None or not self._holds(early) else pack(early.seen, early.order)

    def expect(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what :meth:`ahead` gave."""
        self._expected = dict(tensors)

    def _holds(self, early: Batch) -> bool:
        return early.edits == self._model.edits

    def _resumed(self, views: Sequence[View]) -> Batch | None:
        """The batch that a checkpoint had prepared."""
        expected, self._expected = self._expected, {}
        found = unpack(expected, views, self._model.device) if expected else None
        return None if found is None else self._planned(views, *found)

    def _prepare(
        self, views: Sequence[View], inflate: Inflate | None, late: Tensor | None
    ) -> Batch:
        """Cull, order and plan."""
        limits = [self._limits.rows] if self._limits.rows is not None else []
        if self._most_share is not None:
            limits.append(max(1, int(self._most_share * self._model.n_rows)))
        most = min(limits, default=None)
        seen = look(self._model.params, views, self._renderer, most_rows=most, inflate=inflate)
        return self._planned(views, seen, self._order(seen, late))

    def _order(self, seen: Seen, late: Tensor | None) -> np.ndarray:
        n = len(seen.microbatches)
        if self._preset.order != "tsp" or n <= 2 or not len(seen.ids) or self._stays(seen):
            return np.arange(n)
        start = None if late is None else least_shared(seen, late)
        return np.asarray(gs_order.order(seen.mask, n_views=n, start=start, seed=self._seed))

    def _planned(self, views: Sequence[View], seen: Seen, order: np.ndarray) -> Batch:
        plan = None if self._stays(seen) else self._plan(seen, order)
        return Batch(_names(views), self._model.edits, seen, order, plan)

    def _plan(self, seen: Seen, order: np.ndarray) -> gs_order.Plan:
        retain: str | int = self._preset.retain
        if retain == "last_use" and self._limits.slots is not None:
            # A microbatch and the next are on the device at once, whatever the limit: a view that
            # cannot be cut further is not refused.
            pairs = [seen.counts[a] + seen.counts[b] for a, b in pairwise(order)]
            retain = max(self._limits.slots, *seen.counts, *pairs)
        return gs_order.plan(seen.ids, seen.mask, order, retain=retain, ahead=AHEAD)

    def _stays(self, seen: Seen) -> bool:
        """Whether the rows are updated on the device."""
        most = self._limits.residents
        return self._preset.residents and (most is None or 0 < most >= len(seen.ids))


def _names(views: Sequence[View]) -> tuple[str, ...]:
    return tuple(view.name for view in views)
