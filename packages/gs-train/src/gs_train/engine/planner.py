# SPDX-License-Identifier: Apache-2.0
"""What a batch sees, where it runs, and the canonical order of its views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from gs_train.engine.all_rows import AllRows
from gs_train.engine.lookahead import EarlyList, Lookahead
from gs_train.engine.microbatches import Seen, look, marks_of
from gs_train.engine.placement import Batch, Placement, first_with_room
from gs_train.engine.settings import StepSettings
from gs_train.engine.view_costs import ViewCosts
from gs_train.renderers import Renderer, View
from gs_train.rows.operations import Model


class Planner:
    """Makes batches when they begin.

    What a batch sees is what the geometry of that moment shows, with or without an early list.

    Args:
        model, renderer, placements, most_rows, most_share: as `Engine`'s.
        lookahead: finds early lists.
        all_rows: lists all rows where that takes less.
        costs: of the views.
    """

    def __init__(
        self,
        model: Model,
        renderer: Renderer,
        placements: Sequence[Placement],
        *,
        lookahead: Lookahead,
        all_rows: AllRows,
        costs: ViewCosts,
        most_rows: int | None,
        most_share: float | None,
    ) -> None:
        self._model = model
        self._renderer = renderer
        self._placements = placements
        self._lookahead = lookahead
        self._all_rows = all_rows
        self._costs = costs
        self._most = most_rows
        self._most_share = most_share

    def batch(
        self, views: Sequence[View], settings: StepSettings, trouble: Exception | None = None
    ) -> Batch:
        """The batch of these views.

        Args:
            settings: of its step.
            trouble: why it cannot be drawn.

        Raises:
            Exception: the trouble, before an early list is taken.

        Cost: where all rows are listed, or an early list holds and the device updates its rows, one
            kernel over the list. Else one cull, which synchronises, and more where a view is cut.
        """
        if trouble is not None:
            raise trouble
        early = self._lookahead.take(views, settings)
        if self.lists_all(len(views), settings):
            seen = self._all_rows.list(views)
            return self._made(self._placement_for(seen), seen, self._marks(seen), None)
        if early is not None and not self._is_cut(early.seen):
            placement = self._placement_for(early.seen)
            if placement.is_resident:
                return self._made(placement, early.seen, self._marks(early.seen), early)
        most = self._most_rows
        seen = look(self._model.params, views, self._renderer, most_rows=most)
        return self._made(self._placement_for(seen), seen, None, early)

    def lists_all(self, n_views: int, settings: StepSettings) -> bool:
        """Whether a batch of so many views lists all rows: then nothing need be known before."""
        most = self._most_rows
        fits = most is None or self._model.n_rows <= most
        return fits and self._all_rows.suffices(n_views, settings)

    def _marks(self, seen: Seen) -> Tensor:
        return marks_of(seen, self._model.params, self._renderer)

    def _made(
        self, placement: Placement, seen: Seen, marks: Tensor | None, early: EarlyList | None
    ) -> Batch:
        if len(seen.microbatches) > 1:
            order = self._costs.order([microbatch.crop.view for microbatch in seen.microbatches])
        else:
            order = np.zeros(len(seen.microbatches), np.int64)
        return Batch(placement, seen, marks, order, early, self._model.n_rows)

    def _placement_for(self, seen: Seen) -> Placement:
        return self._placements[first_with_room(self._placements, seen)]

    @property
    def _most_rows(self) -> int | None:
        """Of a microbatch: a view that sees more is cut."""
        if self._most_share is None:
            return self._most
        share = max(1, int(self._most_share * self._model.n_rows))
        return share if self._most is None else min(self._most, share)

    def _is_cut(self, seen: Seen) -> bool:
        """Whether some view sees more rows than are drawn at once."""
        return self._most_rows is not None and max(seen.counts) > self._most_rows
