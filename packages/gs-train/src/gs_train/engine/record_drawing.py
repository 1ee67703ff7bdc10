# SPDX-License-Identifier: Apache-2.0
"""One microbatch drawn from splats that all ranks have sent: image, loss, gradients of splats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gs_raster import MAX_INSTANCES
from gs_train.engine.parts import drawn_in_parts, planned_parts
from gs_train.engine.room import Densities, room_of
from gs_train.engine.settings import StepSettings
from gs_train.engine.view_costs import ViewCosts
from gs_train.losses.loss import Crop, loss_and_gradient
from gs_train.renderers.records import DrawnRecords, RecordRenderer, SplatRecords


class DrawnSplats(NamedTuple):
    """A microbatch that was drawn.

    Attributes:
        share: () of the batch's loss.
        gradients: (S, words) of the records.
        n_intersections: pairs of a splat and a tile; None where memory decided what was drawn.
        columns: (C,) int64 the same for each column of tiles, on the device; None where it was
            drawn in parts, or they are not counted.
    """

    share: Tensor
    gradients: Tensor
    n_intersections: int | None
    columns: Tensor | None


class RecordDrawing:
    """Draws microbatches of one batch.

    Args:
        records: draws splats.
        settings: of the step.
        n_views: that the loss is the mean of.
        costs: of the views.
        densities: of the views; told about all that is drawn.
        counts_columns: see `DrawnSplats`.
    """

    def __init__(
        self,
        records: RecordRenderer,
        settings: StepSettings,
        n_views: int,
        costs: ViewCosts,
        densities: Densities,
        *,
        counts_columns: bool,
    ) -> None:
        self._densities = densities
        self._counts_columns = counts_columns
        self._records = records
        self._settings = settings
        self._weight = 1.0 / n_views
        self._costs = costs

    def draw(self, crop: Crop, truth: Tensor, splats: SplatRecords) -> DrawnSplats:
        """Draw a view or a crop.

        Args:
            truth: (H, W, 3) uint8 of the whole view.
            splats: of all rows that it shows, in any order.
        """
        parts = planned_parts(crop, self._costs.known(crop.view), MAX_INSTANCES)
        drawn, is_tight = drawn_in_parts(
            parts, lambda parts: self._pass(parts, truth, splats), lambda: None, n_rows=splats.n
        )
        return drawn._replace(n_intersections=None, columns=None) if is_tight else drawn

    def _pass(self, parts: Sequence[Crop], truth: Tensor, splats: SplatRecords) -> DrawnSplats:
        """Draw each part, and add up losses and gradients."""
        drawn = [self._one(part, truth, splats) for part in parts]
        if len(drawn) == 1:
            return drawn[0]
        gradients = drawn[0].gradients
        for one in drawn[1:]:
            gradients += one.gradients
        count = sum(one.n_intersections or 0 for one in drawn)
        return DrawnSplats(torch.stack([one.share for one in drawn]).sum(), gradients, count, None)

    def _one(self, crop: Crop, truth: Tensor, splats: SplatRecords) -> DrawnSplats:
        name, core, view = crop.view.name, crop.core, crop.view
        is_whole = (core.width, core.height) == (view.width, view.height)
        room = self._densities.room(name, splats.n, self._costs.known(view) if is_whole else None)
        while True:
            drawn, found = self._enqueued(crop, truth, splats, room)
            count = drawn.n_intersections  # which the device knows long before it has drawn
            if count <= room:
                break
            room = room_of(count)
            del drawn, found  # whose memory is free from here on
        self._densities.note(name, splats.n, count)
        columns = drawn.column_counts() if self._counts_columns else None
        return found._replace(n_intersections=count, columns=columns)

    def _enqueued(
        self, crop: Crop, truth: Tensor, splats: SplatRecords, room: int
    ) -> tuple[DrawnRecords, DrawnSplats]:
        """Draw with room for so many intersections; they have not been counted yet."""
        rect = crop.rect
        drawn = self._records.draw(splats, crop.view, rect, room=room)
        share, gradient = loss_and_gradient(
            drawn.image,
            truth[rect.y0 : rect.y1, rect.x0 : rect.x1],
            crop,
            self._settings.ssim_lambda,
            weight=self._weight,
        )
        gradients = self._records.send_back(drawn, gradient)
        return drawn, DrawnSplats(share, gradients, None, None)
