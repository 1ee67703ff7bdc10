# SPDX-License-Identifier: Apache-2.0
"""What a batch sees, in which order its views are drawn, and what moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from torch import Tensor

import gs_order
from gs_train.engine.backend import StepSettings
from gs_train.engine.limits import Limits
from gs_train.engine.lookahead import EarlyList, Lookahead
from gs_train.engine.microbatches import Seen, look, mark
from gs_train.engine.sums import Returning
from gs_train.engine.view_costs import ViewCosts
from gs_train.options.presets import Preset
from gs_train.renderers import Renderer, View
from gs_train.rows.tiered import TieredGaussians

LOADS_AHEAD = 1
"""Microbatches that loads run ahead of rendering."""


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch that can run.

    Attributes:
        seen: its microbatches and their rows; where ``marks`` are given, rows that it may see.
        marks: (U,) bool: which of the rows any view really sees; None: all.
        order: of the microbatches.
        early: the list of rows that was found for it before; None: there was none, or it does not
            hold.
        plan: what moves when the host updates its rows; None where the device does.
        returning: its rows that come back; None as well.
    """

    seen: Seen
    marks: Tensor | None
    order: np.ndarray
    early: EarlyList | None
    plan: gs_order.Plan | None
    returning: Returning | None


class Planner:
    """Makes batches when they begin.

    What a batch sees is what the geometry of that moment shows, with or without an early list.

    Args:
        model, renderer, preset, limits, most_share, seed: as `Engine`'s.
        lookahead: finds early lists.
        costs: of the views.
    """

    def __init__(
        self,
        model: TieredGaussians,
        renderer: Renderer,
        preset: Preset,
        limits: Limits,
        lookahead: Lookahead,
        costs: ViewCosts,
        *,
        most_share: float | None,
        seed: int,
    ) -> None:
        self._model = model
        self._renderer = renderer
        self._preset = preset
        self._limits = limits
        self._lookahead = lookahead
        self._costs = costs
        self._most_share = most_share
        self._seed = seed

    def batch(self, views: Sequence[View], settings: StepSettings) -> Batch:
        """The batch of these views.

        Args:
            settings: of its step.

        Cost: where an early list holds and the device updates its rows, one kernel over the list.
            Else one cull, which synchronises, and more where a view is cut.
        """
        early = self._lookahead.take(views, settings)
        if early is not None and self._stays(early.seen) and not self._is_cut(early.seen):
            marks = mark(self._model.params, early.seen, self._renderer)
            return self._staying(early.seen, marks, early)
        most = self._most_rows
        seen = look(self._model.params, views, self._renderer, most_rows=most)
        if self._stays(seen):
            return self._staying(seen, None, early)
        order = self._order(seen)
        plan = self._plan(seen, order)
        return Batch(seen, None, order, early, plan, Returning.of(plan))

    def _staying(self, seen: Seen, marks: Tensor | None, early: EarlyList | None) -> Batch:
        order = self._costs.order([microbatch.crop.view for microbatch in seen.microbatches])
        return Batch(seen, marks, order, early, None, None)

    @property
    def _most_rows(self) -> int | None:
        """Of a microbatch: a view that sees more is cut."""
        limits = [self._limits.rows] if self._limits.rows is not None else []
        if self._most_share is not None:
            limits.append(max(1, int(self._most_share * self._model.n_rows)))
        return min(limits, default=None)

    def _order(self, seen: Seen) -> np.ndarray:
        n = len(seen.microbatches)
        if self._preset.order != "tsp" or n <= 2 or not len(seen.ids):
            return np.arange(n)
        return np.asarray(gs_order.order(seen.mask, n_views=n, seed=self._seed))

    def _plan(self, seen: Seen, order: np.ndarray) -> gs_order.Plan:
        retain: str | int = self._preset.retain
        if retain == "last_use" and self._limits.slots is not None:
            # A microbatch and the next are on the device at once, whatever the limit: a view that
            # cannot be cut further is not refused.
            pairs = [seen.counts[a] + seen.counts[b] for a, b in pairwise(order)]
            retain = max(self._limits.slots, *seen.counts, *pairs)
        return gs_order.plan(seen.ids, seen.mask, order, retain=retain, ahead=LOADS_AHEAD)

    def _stays(self, seen: Seen) -> bool:
        """Whether the rows are updated on the device."""
        most = self._limits.residents
        return self._preset.residents and (most is None or 0 < most >= len(seen.ids))

    def _is_cut(self, seen: Seen) -> bool:
        """Whether some view sees more rows than are drawn at once."""
        return self._most_rows is not None and max(seen.counts) > self._most_rows
