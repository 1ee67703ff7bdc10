# SPDX-License-Identifier: Apache-2.0
"""What a batch sees of a rank's own rows, and what all ranks agree on before they draw it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from gs_train.engine.all_rows import AllRows
from gs_train.engine.lookahead import EarlyList, Lookahead
from gs_train.engine.microbatches import Microbatch, Seen, look_at, marks_of
from gs_train.engine.pace import UNKNOWN, DrawingPace, paces_of
from gs_train.engine.placement import Batch, Placement, first_with_room
from gs_train.engine.settings import StepSettings
from gs_train.engine.shared_views import SharedViews, digest_of
from gs_train.engine.view_costs import ViewCosts
from gs_train.engine.view_news import ViewNews
from gs_train.files.agreement import raise_common
from gs_train.ranks.asides import Aside
from gs_train.ranks.turns import Turns
from gs_train.renderers import Renderer, View
from gs_train.rows.operations import Model
from gs_train.world.failure import DisagreementError
from gs_train.world.protocol import World

_HEAD = 5
"""Numbers in front of the counts of a rank: the digest, its placement, its rows, its pace, and
whether it has trouble."""


class SharedPlanner:
    """Makes batches when they begin, where several ranks draw them together.

    Each rank lists what the batch may see of its own rows. All gather one table: how long these
    lists are, and which placement each rank would take. A batch runs in the same placement on all
    ranks.

    Args:
        model, renderer, placements: as `Engine`'s.
        lookahead: finds early lists.
        all_rows: lists all rows where that takes less.
        costs: of the views.
        views: makes microbatches.
        news: of the views that were drawn last.
        drawing_pace: of this rank.
        world: all ranks.

    Attributes:
        drawing_pace: the same.
        pace: what it said of the batch that began last. It decides who draws what, and no result.
        asides: tell ranks something else in the same gather; the same ones on all ranks.
    """

    def __init__(
        self,
        model: Model,
        renderer: Renderer,
        placements: Sequence[Placement],
        lookahead: Lookahead,
        all_rows: AllRows,
        costs: ViewCosts,
        views: SharedViews,
        news: ViewNews,
        drawing_pace: DrawingPace,
        world: World,
    ) -> None:
        self._model = model
        self._renderer = renderer
        self._placements = placements
        self._lookahead = lookahead
        self._all_rows = all_rows
        self._costs = costs
        self._views = views
        self._news = news
        self.drawing_pace = drawing_pace
        self._world = world
        self.pace = UNKNOWN
        self.asides: list[Aside] = [news]

    def batch(
        self, views: Sequence[View], settings: StepSettings, trouble: Exception | None = None
    ) -> Batch:
        """The batch of these views. All ranks call it with the same ones, or as many at least.

        Args:
            settings: of its step.
            trouble: why this rank cannot draw it.

        Raises:
            CommonError: on all ranks: one has trouble, and is named.
            DisagreementError: on all ranks: they do not have the same batch.

        Cost: as `Planner.batch`, and a gather of some numbers for each microbatch, with which the
            words of `asides` travel.
        """
        self.pace = self.drawing_pace.next_batch()
        self._news.go_on()
        microbatches = self._views.of(views)
        own = self._listed(views, microbatches, settings)
        table = self._gather(own, len(views), trouble)
        if table.places.min() < table.places.max():
            # There is room here and not there. Where the host updates rows, a list must be exact.
            own = self._found(microbatches, least=int(table.places.max()))
            table = self._gather(own, len(views))
        place = int(table.places.max())
        return Batch(
            self._placements[place],
            own.seen,
            own.marks,
            np.arange(len(microbatches)),
            own.early,
            int(table.n_rows.sum()),
            Turns.of(table.counts, paces=paces_of(table.paces)),
        )

    def lists_all(self, n_views: int, settings: StepSettings) -> bool:
        """Whether a batch of so many views lists all rows: then nothing need be known before."""
        return self._all_rows.suffices(n_views, settings)

    def _listed(
        self, views: Sequence[View], microbatches: Sequence[Microbatch], settings: StepSettings
    ) -> _Own:
        """This rank's part, from whatever list takes least."""
        early = self._lookahead.take(views, settings)
        if self.lists_all(len(views), settings):
            seen = self._all_rows.list_of(microbatches)
            return _Own(seen, self._marks(seen), None, self._place_for(seen))
        if early is not None and _same(early.seen.microbatches, microbatches):
            place = self._place_for(early.seen)
            if self._placements[place].is_resident:
                return _Own(early.seen, self._marks(early.seen), early, place)
        return self._found(microbatches)._replace(early=early)

    def _found(self, microbatches: Sequence[Microbatch], least: int = 0) -> _Own:
        """This rank's part, from what the geometry shows now.

        Args:
            least: the first placement that it may run in.
        """
        seen = look_at(self._model.params, microbatches, self._renderer, whole_tiles=True)
        return _Own(seen, None, None, max(self._place_for(seen), least))

    def _marks(self, seen: Seen) -> Tensor:
        return marks_of(seen, self._model.params, self._renderer)

    def _place_for(self, seen: Seen) -> int:
        return first_with_room(self._placements, seen)

    def _gather(self, own: _Own, n_views: int, trouble: Exception | None = None) -> _Table:
        """What all ranks say of the batch that begins, and beside it.

        A row is as long as any cuts of so many views can make it: ranks that have cut them
        differently gather rows of one length, and find that out.
        """
        step, n_rows = self._costs.step, self._model.n_rows
        beside = [np.asarray(aside.words(), np.int64) for aside in self.asides]
        digest = digest_of(step, own.seen.microbatches)
        n_microbatches = len(own.seen.counts)
        row = np.zeros(_HEAD + n_views + self._world.size, np.int64)
        row[:_HEAD] = digest, own.place, n_rows, self.pace, trouble is not None
        row[_HEAD : _HEAD + n_microbatches] = own.seen.counts
        table, end = self._world.gather(np.concatenate([row, *beside])), len(row)
        for aside, words in zip(self.asides, beside):
            start, end = end, end + len(words)
            aside.take(table[:, start:end])
        digests, places, ranks_rows, paces, troubled = table[:, :_HEAD].T
        raise_common(self._world, troubled, trouble)
        if (digests != digests[0]).any():
            raise DisagreementError(
                f"all ranks must draw the same views, and in step {step} they do not: start all "
                "with the same command, on the same capture"
            )
        return _Table(places, ranks_rows, paces, table[:, _HEAD : _HEAD + n_microbatches])


def _same(ours: Sequence[Microbatch], theirs: Sequence[Microbatch]) -> bool:
    """Whether microbatches of the same views are the same."""
    return len(ours) == len(theirs) and all(
        one.index == other.index and (one.crop is other.crop or one.crop.core == other.crop.core)
        for one, other in zip(ours, theirs)
    )


class _Own(NamedTuple):
    """A rank's part of a batch.

    Attributes:
        seen, marks, early: see `Batch`.
        place: of the placements, the one that has room.
    """

    seen: Seen
    marks: Tensor | None
    early: EarlyList | None
    place: int


class _Table(NamedTuple):
    """What all ranks have said, (W,) each; ``counts`` is (W, M): rows listed for microbatches."""

    places: np.ndarray
    n_rows: np.ndarray
    paces: np.ndarray
    counts: np.ndarray
