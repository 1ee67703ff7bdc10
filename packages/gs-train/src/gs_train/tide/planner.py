# SPDX-License-Identifier: Apache-2.0
"""What batches see of rows in blocks, when they begin and before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gs_train.blocks.stored_rows import StoredRows
from gs_train.engine.lookahead import EarlyList
from gs_train.engine.microbatches import Microbatch, Seen
from gs_train.engine.placement import Batch
from gs_train.engine.settings import StepSettings
from gs_train.engine.view_costs import ViewCosts
from gs_train.losses.loss import Crop
from gs_train.renderers import Renderer, View
from gs_train.renderers.culling import cameras_of
from gs_train.tide.placement import BlockPlacement


class BlockPlanner:
    """A `PlansBatches` that looks through the boxes of blocks, then at the rows of those.

    Args:
        rows: in blocks.
        renderer: by whose rules.
        placement: that all batches run in.
        costs: of the views.
    """

    def __init__(
        self, rows: StoredRows, renderer: Renderer, placement: BlockPlacement, costs: ViewCosts
    ) -> None:
        self._rows = rows
        self._renderer = renderer
        self._placement = placement
        self._costs = costs

    def batch(
        self, views: Sequence[View], settings: StepSettings, trouble: Exception | None = None
    ) -> Batch:
        """See `Planner.batch`."""
        if trouble is not None:
            raise trouble
        look = self._rows.look(views, self._renderer)
        whole = tuple(Microbatch(k, Crop(view, view.rect)) for k, view in enumerate(views))
        ids = torch.arange(len(look.keys), dtype=torch.int32, device=look.keys.device)
        seen = Seen(whole, ids, look.mask, look.counts, cameras_of(views))
        self._placement.take_over(look)
        order = self._costs.order(list(views)) if len(views) > 1 else np.zeros(1, np.int64)
        return Batch(self._placement, seen, None, order, None, len(self._rows))

    def lists_all(self, n_views: int, settings: StepSettings) -> bool:
        """No batch does."""
        return False


class BlockLookahead:
    """A `LooksAhead`: blocks of the next batch begin to come. Boxes hold what steps between move,
    so that nothing else has to be found early."""

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
            self._rows.expect(upcoming[0], self._renderer)
        return None

    def looked(self) -> torch.cuda.Event | None:
        """Nothing reads rows on other lanes."""
        return None
