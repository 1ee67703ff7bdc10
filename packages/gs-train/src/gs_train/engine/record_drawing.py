# SPDX-License-Identifier: Apache-2.0
"""One microbatch drawn from splats that all ranks have sent: image, loss, gradients of splats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gs_raster import MAX_INSTANCES
from gs_train.engine.drawn_loss import drawn_loss, inverse_depth_of
from gs_train.engine.parts import drawn_in_parts, halved, have_pixels, planned_parts
from gs_train.engine.room import Densities
from gs_train.engine.settings import StepSettings
from gs_train.engine.view_costs import ViewCosts
from gs_train.losses.loss import Crop
from gs_train.machine.host_copies import HostCopy
from gs_train.renderers import TooManyIntersectionsError
from gs_train.renderers.records import DrawnRecords, RecordRenderer, SplatRecords


class DrawnSplats(NamedTuple):
    """A microbatch that was drawn.

    Attributes:
        share: () of the batch's loss.
        gradients: (S, words) of the records.
        n_intersections: pairs of a splat and a tile; None where memory decided what was drawn.
        columns: (C,) int64 the same for each column of tiles; None where it was drawn in parts, or
            they are not counted.
    """

    share: Tensor
    gradients: Tensor
    n_intersections: int | None
    columns: HostCopy | None


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

    def begin(self, crop: Crop, truth: Tensor, splats: SplatRecords) -> Callable[[], DrawnSplats]:
        """Begin to draw a view or a crop.

        Args:
            truth: (H, W, 3 to 6) uint8 of the whole view.
            splats: of all rows that it shows, in any order; left alone until the drawing has ended.

        Returns:
            A function that ends the drawing, called once. It waits until intersections have been
            counted, and draws again where there was too little room for them.
        """
        parts = planned_parts(crop, self._costs.known(crop.view), MAX_INSTANCES)
        return self._begun(parts, truth, splats)

    def _begun(
        self, parts: Sequence[Crop], truth: Tensor, splats: SplatRecords
    ) -> Callable[[], DrawnSplats]:
        """Begin to draw the parts of a view or a crop, or more of them where it must be."""
        end, is_tight = drawn_in_parts(
            parts, lambda parts: self._pass(parts, truth, splats), lambda: None, n_rows=splats.n
        )
        if is_tight:
            return lambda: end()._replace(n_intersections=None, columns=None)
        return end

    def _pass(
        self, parts: Sequence[Crop], truth: Tensor, splats: SplatRecords
    ) -> Callable[[], DrawnSplats]:
        """Begin to draw the only part; or draw each, and add up losses and gradients."""
        if len(parts) == 1:
            attempts = [self._attempt(parts[0], truth, splats)]
            return lambda: self._ended(attempts, parts, truth, splats)
        drawn = [self._one(part, truth, splats) for part in parts]
        gradients = drawn[0].gradients
        for one in drawn[1:]:
            gradients += one.gradients
        count = sum(one.n_intersections or 0 for one in drawn)
        share = torch.stack([one.share for one in drawn]).sum(0)
        return lambda: DrawnSplats(share, gradients, count, None)

    def _ended(
        self,
        attempts: list[_Attempt],
        parts: Sequence[Crop],
        truth: Tensor,
        splats: SplatRecords,
    ) -> DrawnSplats:
        """What has been drawn, if that is all; else draw again. The attempt is taken from the list,
        so that its memory is free by then."""
        try:
            drawn = self._counted(attempts.pop())
        except TooManyIntersectionsError:
            drawn, parts = None, halved(parts)
            if not have_pixels(parts):
                raise
        return self._begun(parts, truth, splats)() if drawn is None else drawn

    def _one(self, crop: Crop, truth: Tensor, splats: SplatRecords) -> DrawnSplats:
        while True:
            drawn = self._counted(self._attempt(crop, truth, splats))
            if drawn is not None:
                return drawn

    def _attempt(self, crop: Crop, truth: Tensor, splats: SplatRecords) -> _Attempt:
        """Enqueue a drawing with room for as many intersections as are expected."""
        view, core, rect = crop.view, crop.core, crop.rect
        is_whole = (core.width, core.height) == (view.width, view.height)
        known = self._costs.known(view) if is_whole else None
        room = self._densities.room(view.name, splats.n, known)
        depth = inverse_depth_of(self._settings, view, truth) is not None
        drawn = self._records.draw(splats, view, rect, room=room, depth=depth)
        # Copied before the backward pass, so that the counts are there when the drawing ends.
        columns = HostCopy(drawn.column_counts()) if self._counts_columns else None
        seen = truth if is_whole else truth[rect.y0 : rect.y1, rect.x0 : rect.x1]
        loss = drawn_loss(
            drawn.image,
            drawn,
            seen,
            crop,
            self._settings,
            weight=self._weight,
            out=drawn.for_gradient,
        )
        gradients = self._records.send_back(drawn, loss.of_image, loss.of_alpha, loss.of_depth)
        return _Attempt(view.name, splats.n, room, drawn, columns, loss.share, gradients)

    def _counted(self, attempt: _Attempt) -> DrawnSplats | None:
        """What has been drawn; None where there was too little room. The next attempt has enough,
        as the view's density is known."""
        count = attempt.drawn.n_intersections  # which the device knows long before it has drawn
        self._densities.note(attempt.view, attempt.n_rows, count)
        if count > attempt.room:
            return None
        return DrawnSplats(attempt.share, attempt.gradients, count, attempt.columns)


class _Attempt(NamedTuple):
    """Drawn with a room that may have been too little."""

    view: str
    n_rows: int
    room: int
    drawn: DrawnRecords
    columns: HostCopy | None
    share: Tensor
    gradients: Tensor
