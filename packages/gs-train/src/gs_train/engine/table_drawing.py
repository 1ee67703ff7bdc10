# SPDX-License-Identifier: Apache-2.0
"""Microbatches drawn from the tables that their rows live in.

Intersections get room from the count when a view was last drawn. The host looks at the count of a
view once the next view is enqueued, when the device has long had it: where the room was too small,
the device has added nothing of the two, and both are drawn again. So sums and losses are those of
ample room, and the device never waits for the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gs_raster import MAX_INSTANCES
from gs_train.engine.crop_statistics import CropStatistics
from gs_train.engine.drawn_loss import drawn_loss, inverse_depth_of
from gs_train.engine.microbatches import Microbatch
from gs_train.engine.parts import planned_parts
from gs_train.engine.room import KEPT_BYTES, Densities, room_of
from gs_train.engine.settings import StepSettings
from gs_train.engine.view_costs import ViewCosts
from gs_train.renderers import Splats
from gs_train.renderers.tables import Direct, TableRenderer, TableRows

FromCopies = Callable[[int, Microbatch, Tensor], Tensor]
"""Draws a microbatch from copies of its rows: its index, itself, the photograph to its share of the
loss. Tells about it, too."""


@dataclass(eq=False)
class _Pass:
    """A microbatch on its way.

    Attributes:
        index: in the batch.
        room: for intersections.
        share: () of the loss; None before it was drawn.
        splats: of the last time that it was drawn; None where `direct` took the view.
    """

    index: int
    microbatch: Microbatch
    truth: Tensor
    rows: TableRows
    room: int
    share: Tensor | None = None
    splats: Splats | None = None


class TableDrawing:
    """Draws the microbatches of one batch.

    Args:
        renderer: draws them.
        settings: of the step.
        statistics: told about each microbatch, one later than it is drawn.
        direct: takes microbatches instead, if given.
        costs: of the views; told about those that are drawn whole.
        densities: of the views; told about each microbatch.
        from_copies: draws microbatches that one pass over the tables does not suffice for.
        n_views: that the loss is the mean of.
        n_microbatches: of the batch.
    """

    def __init__(
        self,
        renderer: TableRenderer,
        settings: StepSettings,
        statistics: CropStatistics,
        direct: Direct | None,
        costs: ViewCosts,
        densities: Densities,
        from_copies: FromCopies,
        *,
        n_views: int,
        n_microbatches: int,
    ) -> None:
        self._renderer = renderer
        self._settings = settings
        self._statistics = statistics
        self._direct = direct
        self._weight = 1.0 / n_views
        self._costs = costs
        self._densities = densities
        self._from_copies = from_copies
        self._last: _Pass | None = None
        renderer.begin(n_microbatches)

    def draw(
        self, index: int, microbatch: Microbatch, truth: Tensor, rows: TableRows
    ) -> Tensor | None:
        """Enqueue a microbatch, and look back at the one before.

        Args:
            index: in the batch.
            truth: (H, W, 3 to 6) uint8 of the whole view.

        Returns:
            () its share of the batch's loss, which holds once `settle` was called; None where it
            must be drawn from copies of its rows: there are none, one pass is too much, or memory
            does not suffice. Nothing of it has been added then, and nothing is pending.
        """
        one: _Pass | None = None
        if rows.ids.shape[0] and self._is_one_pass(microbatch):
            room = self._room(microbatch, rows.ids.shape[0])
            one = _Pass(index, microbatch, truth, rows, room)
            if self._enqueue(one):
                self._look_back(one)
                return one.share
        self._look_back(None)
        self._renderer.release()  # copies of rows take more
        if one is not None:
            self._renderer.go_on()  # where the device came to know that it had too little room
        return None

    def settle(self) -> None:
        """See that the microbatch that was drawn last had room, and tell about it."""
        self._look_back(None)
        self._renderer.release(above=KEPT_BYTES)

    def _room(self, microbatch: Microbatch, n_rows: int) -> int:
        return self._densities.room(microbatch.crop.view.name, n_rows)

    def _is_one_pass(self, microbatch: Microbatch) -> bool:
        """Whether one pass suffices for a microbatch, as far as is known."""
        crop = microbatch.crop
        known = self._costs.known(crop.view)
        if known is None or known <= MAX_INSTANCES:
            return True  # of most views, told soon
        return len(planned_parts(crop, known, MAX_INSTANCES)) == 1

    def _look_back(self, following: _Pass | None) -> None:
        """See `settle`.

        Args:
            following: what has been enqueued behind the last microbatch, and is the last one now.
        """
        last, self._last = self._last, following
        if last is None:
            return
        count = self._renderer.n_intersections(last.index)
        self._densities.note(last.microbatch.crop.view.name, last.rows.ids.shape[0], count)
        had_room, is_told = count <= last.room, False
        if not had_room:
            self._renderer.go_on()
            last.room = room_of(count)
            is_told = not self._again(last)
        if not is_told:
            core, view = last.microbatch.crop.core, last.microbatch.crop.view
            if self._direct is None:
                self._statistics.note(last.microbatch, last.rows.ids, last.splats)
            if count and (core.width, core.height) == (view.width, view.height):
                self._costs.note(view, count)
        if not had_room and following is not None and not self._again(following):
            self._last = None

    def _again(self, one: _Pass) -> bool:
        """Draw a microbatch once more; False: from copies, which has told about it."""
        one.splats = None  # whose memory is free from here on
        if one.room <= MAX_INSTANCES:
            if self._enqueue(one):
                return True
            self._renderer.go_on()
        self._renderer.release()  # copies of rows take more
        assert one.share is not None
        one.share.copy_(self._from_copies(one.index, one.microbatch, one.truth))
        return False

    def _enqueue(self, one: _Pass) -> bool:
        """Draw a microbatch, and send its gradient back; False: memory does not suffice, and
        nothing has been added."""
        try:
            share, one.splats = self._drawn(one)
        except torch.cuda.OutOfMemoryError:
            return False
        if one.share is None:
            one.share = share
        else:
            one.share.copy_(share)
        return True

    def _drawn(self, one: _Pass) -> tuple[Tensor, Splats | None]:
        """Its share of the loss, and its splats with their gradients, if anybody is told."""
        crop, settings, renderer = one.microbatch.crop, self._settings, self._renderer
        rect = crop.rect
        drawn = renderer.draw(
            one.rows,
            crop.view,
            rect,
            sh_degree=settings.sh_degree,
            room=one.room,
            index=one.index,
            direct=self._direct,
            depth=inverse_depth_of(settings, crop.view, one.truth) is not None,
        )
        one.room = drawn.room
        truth = one.truth
        if truth.shape != drawn.image.shape:
            truth = truth[rect.y0 : rect.y1, rect.x0 : rect.x1]
        loss = drawn_loss(
            drawn.image,
            drawn,
            truth,
            crop,
            settings,
            weight=self._weight,
            out=drawn.for_gradient,
        )
        direct, gradients = self._direct, (loss.of_alpha, loss.of_depth)
        return loss.share, renderer.send_back(drawn, loss.of_image, direct, *gradients)
