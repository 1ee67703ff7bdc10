# SPDX-License-Identifier: Apache-2.0
"""What a batch sees, in which order and what moves: found while the batches before it render."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from gs_train.engine.model import GEOMETRY, OffloadedGaussians
from gs_train.engine.presets import Preset
from gs_train.engine.sums import Returning
from gs_train.renderers import Renderer, View

AHEAD = 1
"""Microbatches that loads run ahead of rendering."""

OnSeen = Callable[[Tensor], None]
"""Takes the (U,) sorted rows of a batch."""

_FURTHER = "further."
"""Begins the names of tensors of the batch after the next one."""


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch that can run.

    Attributes:
        names: of its views.
        edits: of the model when it was looked at.
        seen: its microbatches and their rows.
        order: of the microbatches.
        plan: what moves when the host updates its rows; None where the device does.
        returning: its rows that come back; None as well.
    """

    names: tuple[str, ...]
    edits: int
    seen: Seen
    order: np.ndarray
    plan: gs_order.Plan | None
    returning: Returning | None

    def packed(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return pack(self.names, self.seen, self.order)

    def tensors(self) -> Iterator[Tensor]:
        """What rendering reads of it."""
        yield from (self.seen.ids, self.seen.mask)
        if self.plan is not None:
            for lists in (self.plan.ids, self.plan.positions, self.plan.slots or {}):
                yield from (part.values for part in lists.values())
        if self.returning is not None:
            yield from (self.returning.ids, self.returning.of_loads)


@dataclass(frozen=True, eq=False)
class _Early:
    """A batch that was prepared before the geometry is what it will find.

    Attributes:
        rates: the most that the steps between may take. Betas stay the same while rows sleep.
    """

    batch: Batch
    rates: Mapping[str, float]

    def allows(self, settings: StepSettings) -> bool:
        """Whether a step between moves no row further than was thought."""
        return all(settings.rates[name] <= self.rates[name] for name in GEOMETRY)


class Preparing:
    """Prepares batches, early where there is a bound on what the steps between can move.

    The next one always; the one after it too where rows of a batch may come before the one before
    it begins.

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
        self._early: list[_Early] = []  # the next batch and the one after it, as far as known
        self._expected: list[dict[str, Tensor]] = []  # the same of a checkpoint
        self._lasts = False  # what was found out about the batch that runs held until it began
        self._culled: torch.cuda.Event | None = None

    @property
    def next(self) -> Batch | None:
        """The next batch, where it was prepared early."""
        return self._early[0].batch if self._early else None

    def batch(self, views: Sequence[View], settings: StepSettings) -> Batch:
        """The batch as it was prepared early, when that still holds, or prepared now.

        Args:
            settings: of its step.
        """
        known, self._early = self._early, []
        self._lasts = True
        if known and known[0].batch.names == _names(views) and self._holds(known[0]):
            if all(early.allows(settings) for early in known[1:]):
                self._early = known[1:]
            return known[0].batch
        expected, self._expected = self._expected, []
        resumed = self._resumed(views, expected[0]) if expected else None
        if resumed is None:
            self._lasts = False
            return self._prepare(views, None, None, None)
        self._expected = expected[1:]
        return resumed

    def look_ahead(
        self,
        upcoming: Sequence[Sequence[View]],
        settings: StepSettings,
        edited: torch.cuda.Event | None,
        late: Tensor | None,
        on_seen: OnSeen | None,
    ) -> None:
        """Prepare the next batch on the ``cull`` lane, where that is possible and has not been
        done. May run on another thread than the rest, but at no time beside it.

        Args:
            upcoming: views of the batches that follow, as far as they are known.
            settings: of the step that comes before it.
            edited: behind the last change of the geometry.
            late: (R,) sorted rows that the batch before updates last: it begins with a view that
                waits for few of them.
            on_seen: called on that lane as soon as the rows have been found, before their order
                and plan; not where the batch was known.

        Where the device's memory does not suffice beside what is being drawn, nothing is prepared.
        """
        self._look(0, upcoming, settings, edited, late, on_seen)

    def look_further(
        self,
        upcoming: Sequence[Sequence[View]],
        settings: StepSettings,
        edited: torch.cuda.Event | None,
    ) -> None:
        """The same for the batch after the next one, where rows come early. Not while every step
        edits rows, as MCMC's noise does: what is known that early is stale before it is used."""
        if self._preset.residents and self._early and self._lasts:
            self._look(1, upcoming, settings, edited, None, None)

    def _look(
        self,
        k: int,
        upcoming: Sequence[Sequence[View]],
        settings: StepSettings,
        edited: torch.cuda.Event | None,
        late: Tensor | None,
        on_seen: OnSeen | None,
    ) -> None:
        """Prepare batch k of those that follow."""
        views = upcoming[k] if k < len(upcoming) else ()
        if k < len(self._early) and (not views or self._early[k].batch.names == _names(views)):
            return
        del self._early[k:]
        expected, self._expected = self._expected, []
        is_sparse = self._model.host.adam.semantics == "sparse"
        if not views or not self._preset.early_cull or is_sparse:
            return
        if settings.regularises_seen:
            return  # with inflated extents some are found that no view sees
        step = self._model.host.adam.step_count
        inflate = largest_move(settings.rates, settings.betas, step, k + 1)
        if inflate is None:
            return
        is_telling = False

        def tell(ids: Tensor) -> None:
            nonlocal is_telling
            if on_seen is not None:
                is_telling = True
                on_seen(ids)
                is_telling = False

        self._lanes.wait("cull", edited)
        try:
            with self._lanes.on("cull"):
                batch = None
                if expected and _as_expected(expected[0], settings):
                    batch = self._resumed(views, expected[0])
                if batch is None:
                    batch = self._prepare(views, inflate, late, tell)
        except torch.cuda.OutOfMemoryError:
            if is_telling:
                raise
            self._culled = self._lanes.mark("cull")  # it may still be read
            return  # what is being drawn has the memory: it is prepared when that is done
        self._early.append(_Early(batch, settings.rates))
        self._lanes.share("compute", *batch.tensors())
        self._culled = self._lanes.mark("cull")

    def wait_to_edit(self) -> None:
        """Later changes of the geometry wait until it has been looked at."""
        self._lanes.wait("compute", self._culled)
        self._culled = None

    def ahead(self) -> dict[str, Tensor]:
        """What a checkpoint needs of the batches that are known."""
        if not self._early or not self._holds(self._early[0]):
            return {}
        tensors = self._early[0].batch.packed()
        for early in self._early[1:]:
            further = early.batch.packed()
            rates = [early.rates[name] for name in GEOMETRY]
            further["rates"] = torch.tensor(rates, dtype=torch.float64)
            tensors |= {_FURTHER + name: tensor for name, tensor in further.items()}
        return tensors

    def expect(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what :meth:`ahead` gave."""
        first, further = (
            {
                name.removeprefix(_FURTHER): tensor
                for name, tensor in tensors.items()
                if name.startswith(_FURTHER) == is_further
            }
            for is_further in (False, True)
        )
        self._expected = [batch for batch in (first, further) if batch]

    def _holds(self, early: _Early) -> bool:
        return early.batch.edits == self._model.edits

    def _resumed(self, views: Sequence[View], expected: Mapping[str, Tensor]) -> Batch | None:
        """The batch that a checkpoint had prepared."""
        found = unpack(expected, views, self._model.device)
        return None if found is None else self._planned(views, *found)

    def _prepare(
        self,
        views: Sequence[View],
        inflate: Inflate | None,
        late: Tensor | None,
        on_seen: OnSeen | None,
    ) -> Batch:
        """Cull, order and plan."""
        limits = [self._limits.rows] if self._limits.rows is not None else []
        if self._most_share is not None:
            limits.append(max(1, int(self._most_share * self._model.n_rows)))
        most = min(limits, default=None)
        seen = look(self._model.params, views, self._renderer, most_rows=most, inflate=inflate)
        if on_seen is not None:
            on_seen(seen.ids)
        return self._planned(views, seen, self._order(seen, late))

    def _order(self, seen: Seen, late: Tensor | None) -> np.ndarray:
        n = len(seen.microbatches)
        if self._preset.order != "tsp" or n <= 2 or not len(seen.ids) or self._stays(seen):
            return np.arange(n)
        start = None if late is None else least_shared(seen, late)
        return np.asarray(gs_order.order(seen.mask, n_views=n, start=start, seed=self._seed))

    def _planned(self, views: Sequence[View], seen: Seen, order: np.ndarray) -> Batch:
        plan = None if self._stays(seen) else self._plan(seen, order)
        returning = None if plan is None else Returning.of(plan)
        return Batch(_names(views), self._model.edits, seen, order, plan, returning)

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


def _as_expected(tensors: Mapping[str, Tensor], settings: StepSettings) -> bool:
    """See `_Early.allows`, of a batch in a checkpoint."""
    return all(
        settings.rates[name] <= rate for name, rate in zip(GEOMETRY, tensors["rates"].tolist())
    )


def _names(views: Sequence[View]) -> tuple[str, ...]:
    return tuple(view.name for view in views)
