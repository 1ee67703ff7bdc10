# SPDX-License-Identifier: Apache-2.0
"""What batches see of rows in blocks, when they begin and before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gs_train.blocks.rows_in_turns import Census
from gs_train.blocks.stored_rows import Look, StoredRows
from gs_train.engine.lookahead import EarlyList
from gs_train.engine.microbatches import Microbatch, Seen
from gs_train.engine.placement import Batch
from gs_train.engine.settings import StepSettings
from gs_train.engine.view_costs import ViewCosts
from gs_train.losses.loss import Crop
from gs_train.renderers import Renderer, View
from gs_train.renderers.culling import cameras_of
from gs_train.tide.cutting import cut_to_room
from gs_train.tide.passes import BlockPasses
from gs_train.tide.placement import BlockPlacement
from gs_train.tide.room import BatchRoom


class BlockPlanner:
    """A `PlansBatches` that looks through the boxes of blocks, then at the rows of those.

    Args:
        rows: in blocks.
        renderer: by whose rules.
        whole: that batches run in which see no more rows than there is room for.
        passes: that the others run in; None: there are none.
        room: for the rows of a batch; None: for any number.
        most_listed: rows times views of a batch that lists all rows of its blocks.
        costs: of the views.
    """

    def __init__(
        self,
        rows: StoredRows,
        renderer: Renderer,
        whole: BlockPlacement,
        passes: BlockPasses | None,
        room: BatchRoom | None,
        most_listed: int,
        costs: ViewCosts,
    ) -> None:
        self._rows = rows
        self._renderer = renderer
        self._whole = whole
        self._passes = passes
        self._room = room
        self._most_listed = most_listed
        self._costs = costs

    def batch(
        self, views: Sequence[View], settings: StepSettings, trouble: Exception | None = None
    ) -> Batch:
        """See `Planner.batch`.

        Raises:
            InputError: a small part of a view sees more rows than there is room for.
        """
        if trouble is not None:
            raise trouble
        most = None if self._room is None else self._room.most_rows
        self._whole.finish()  # of a batch that did not begin
        if self._passes is not None:
            self._passes.leave()
        look = self._rows.look_within(views, self._renderer, most, most_listed=self._most_listed)
        if look is None:
            return self._in_passes(views)
        self._whole.take_over(look)
        microbatches = [Microbatch(k, Crop(view, view.rect)) for k, view in enumerate(views)]
        return self._made(self._whole, microbatches, look, look.ids, look.marks)

    def _in_passes(self, views: Sequence[View]) -> Batch:
        passes, room = self._passes, self._room
        assert passes is not None
        assert room is not None
        microbatches = cut_to_room(views, lambda parts: self._census(parts, room).counts, room)
        census = self._census(microbatches, room)
        passes.take_over(census)
        ids = torch.arange(len(census.keys), dtype=torch.int32, device=census.keys.device)
        return self._made(passes, microbatches, census, ids)

    def _census(self, microbatches: Sequence[Microbatch], room: BatchRoom) -> Census:
        crops = [microbatch.crop for microbatch in microbatches]
        views, rects = [crop.view for crop in crops], None
        if not all(microbatch.is_whole for microbatch in microbatches):
            rects = np.array([[*vars(crop.rect).values()] for crop in crops], np.int64)
        found = self._rows.candidates(views, self._renderer, rects)
        blocks, cameras = found.ids.astype(np.int64), cameras_of(views)
        return self._rows.in_turns.census(
            blocks, cameras, self._renderer, most_rows=room.most_rows, rects=rects
        )

    def _made(
        self,
        placement: BlockPlacement | BlockPasses,
        microbatches: Sequence[Microbatch],
        found: Look | Census,
        ids: Tensor,
        marks: Tensor | None = None,
    ) -> Batch:
        views = [microbatch.crop.view for microbatch in microbatches]
        seen = Seen(tuple(microbatches), ids, found.mask, found.counts, cameras_of(views))
        order = self._costs.order(views) if len(views) > 1 else np.zeros(1, np.int64)
        return Batch(placement, seen, marks, order, None, len(self._rows))

    def lists_all(self, n_views: int, settings: StepSettings) -> bool:
        """No batch does."""
        return False


class BlockLookahead:
    """A `LooksAhead`: blocks of the next batch begin to come. Blocks of the batch after are found
    beside the next one. Boxes hold what steps between move, so that nothing else has to be found
    early."""

    def __init__(self, rows: StoredRows, renderer: Renderer) -> None:
        self._rows = rows
        self._renderer = renderer

    def find(
        self,
        k: int,
        upcoming: Sequence[Sequence[View]],
        settings: StepSettings,
        step: int,
        edited: torch.cuda.Event | None,
    ) -> EarlyList | None:
        """Begins to bring what the next batch may see; there is no list."""
        if k == 0 and upcoming and upcoming[0]:
            then = upcoming[1] if len(upcoming) > 1 else ()
            self._rows.expect(upcoming[0], self._renderer, settings.rates, then)
        return None

    def looked(self) -> torch.cuda.Event | None:
        """Nothing reads rows on other lanes."""
        return None
