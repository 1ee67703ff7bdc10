# SPDX-License-Identifier: Apache-2.0
"""Microbatches drawn from the tables that their rows live in.

Intersections get room from the count when a view was last drawn. The host looks at the count of a
view once the next view is enqueued, when the device has long had it: where the room was too small,
the device has added nothing of the two, and both are drawn again. So sums and losses are those of
ample room, and the device never waits for the host.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import gs_raster
from gs_train.engine.crop_statistics import CropStatistics
from gs_train.engine.microbatches import Microbatch
from gs_train.engine.parts import planned_parts
from gs_train.engine.settings import StepSettings
from gs_train.engine.view_costs import ViewCosts
from gs_train.losses.loss import loss_and_gradient
from gs_train.renderers import Splats
from gs_train.renderers.tables import Drawn, TableRenderer, TableRows

_SPARE = 65536
"""Intersections beyond what is expected of a view."""

_A_ROW = 8
"""Intersections of a row that are expected in a view that was not drawn before."""


def room_for(n_rows: int, known: int | None) -> int:
    """Intersections that a microbatch gets room for before they are counted.

    Args:
        n_rows: of the microbatch.
        known: intersections of its whole view when that was last drawn; None: not known.
    """
    expected = _A_ROW * n_rows if known is None else known + known // 4
    return min(expected + _SPARE, gs_raster.MAX_INSTANCES)


@dataclass(eq=False)
class _Pass:
    """A microbatch on its way.

    Attributes:
        index: in the batch.
        share: () of the loss.
        drawn, splats: of the last time that it was drawn.
    """

    index: int
    microbatch: Microbatch
    truth: Tensor
    rows: TableRows
    share: Tensor
    drawn: Drawn
    splats: Splats


class TableDrawing:
    """Draws the microbatches of one batch.

    Args:
        renderer: draws them.
        settings: of the step.
        statistics: told about each microbatch, one later than it is drawn.
        n_views: that the loss is the mean of.
        n_microbatches: of the batch.
        costs: of the views; told about those that are drawn whole.
    """

    def __init__(
        self,
        renderer: TableRenderer,
        settings: StepSettings,
        statistics: CropStatistics,
        n_views: int,
        n_microbatches: int,
        costs: ViewCosts,
    ) -> None:
        self._renderer = renderer
        self._settings = settings
        self._statistics = statistics
        self._weight = 1.0 / n_views
        self._costs = costs
        self._last: _Pass | None = None
        renderer.begin(n_microbatches)

    def takes(self, microbatch: Microbatch) -> bool:
        """Whether one pass suffices for a microbatch, as far as is known."""
        crop = microbatch.crop
        known = self._costs.known(crop.view)
        return len(planned_parts(crop, known, gs_raster.MAX_INSTANCES)) == 1

    def draw(self, index: int, microbatch: Microbatch, truth: Tensor, rows: TableRows) -> Tensor:
        """Enqueue a microbatch, and look back at the one before.

        Args:
            index: in the batch.
            truth: (H, W, 3) uint8 of the whole view.

        Returns:
            () its share of the batch's loss, which holds once `settle` was called.

        Raises:
            OutOfMemoryError: nothing of this microbatch has been added.
        """
        room = room_for(len(rows.ids), self._costs.known(microbatch.crop.view))
        share, drawn, splats = self._enqueue(index, microbatch, truth, rows, room)
        following = _Pass(index, microbatch, truth, rows, share, drawn, splats)
        self.settle(following)
        self._last = following
        return share

    def settle(self, following: _Pass | None = None) -> None:
        """See that the microbatch that was drawn last had room, and tell about it.

        Args:
            following: what has been enqueued behind it.
        """
        last, self._last = self._last, None
        if last is None:
            return
        count = self._renderer.n_intersections(last.index)
        if count > last.drawn.room:
            self._renderer.go_on()
            self._again(last, count)
            if following is not None:
                self._again(following, following.drawn.room)
        microbatch = last.microbatch
        self._statistics.note(microbatch, last.rows.ids, last.splats)
        if count and microbatch.crop.core == microbatch.crop.view.rect:
            self._costs.note(microbatch.crop.view, count)

    def _again(self, one: _Pass, room: int) -> None:
        """Enqueue a microbatch once more; memory of the first time is free before."""
        del one.drawn, one.splats
        share, one.drawn, one.splats = self._enqueue(
            one.index, one.microbatch, one.truth, one.rows, room
        )
        one.share.copy_(share)

    def _enqueue(
        self, index: int, microbatch: Microbatch, truth: Tensor, rows: TableRows, room: int
    ) -> tuple[Tensor, Drawn, Splats]:
        crop, renderer = microbatch.crop, self._renderer
        rect = crop.rect
        degree = self._settings.sh_degree
        drawn = renderer.draw(rows, crop.view, rect, sh_degree=degree, room=room, index=index)
        part = truth[rect.y0 : rect.y1, rect.x0 : rect.x1]
        share, gradient = loss_and_gradient(
            drawn.image, part, crop, self._settings.ssim_lambda, weight=self._weight
        )
        return share, drawn, renderer.send_back(drawn, gradient)
