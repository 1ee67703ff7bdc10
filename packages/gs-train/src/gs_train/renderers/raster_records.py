# SPDX-License-Identifier: Apache-2.0
"""gs-raster's splats as records: its own, drawn where they arrive without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import gs_raster
from gs_raster.torch import ProjectedSplats
from gs_train.renderers.protocol import (
    Rect,
    RenderOptions,
    Splats,
    TooManyIntersectionsError,
    View,
)
from gs_train.renderers.raster_views import Cameras, splats_of, statistics_of
from gs_train.renderers.records import (
    ABSGRAD,
    GRADIENTS,
    TILE,
    DrawnRecords,
    Outgoing,
    SplatRecords,
    keys_of,
)
from gs_train.renderers.tables import Direct


@dataclass
class RasterSplats(Splats):
    """Splats with what their rectangles share: records and order."""

    projected: ProjectedSplats | None = None


@dataclass(eq=False)
class RasterDrawnRecords:
    """A `DrawnRecords` with what its gradient needs, until the next one is drawn."""

    drawing: gs_raster.SplatDrawing
    check: gs_raster.RoomCheck

    @property
    def image(self) -> Tensor:
        return self.drawing.image

    @property
    def alpha(self) -> Tensor:
        return self.drawing.alpha

    @property
    def for_gradient(self) -> Tensor | None:
        return self.drawing.for_gradient

    @property
    def depth(self) -> Tensor | None:
        return self.drawing.depth

    @property
    def n_intersections(self) -> int:
        count = self.check.wait_for(0)
        if count > gs_raster.MAX_INSTANCES:
            raise TooManyIntersectionsError(count)
        return count

    def column_counts(self) -> Tensor:
        """See `DrawnRecords`."""
        rect = self.drawing.rect
        n_columns = -(-rect.x1 // TILE) - rect.x0 // TILE
        return self.drawing.begins.diff().view(-1, n_columns).sum(0)


@dataclass(eq=False)
class Projected:
    """Rows of tables that have been projected into views.

    Attributes:
        outgoing: rows, views and records.
        native: the same as gs-raster's.
    """

    outgoing: Sequence[Outgoing]
    native: gs_raster.ProjectedViews


class RasterRecords:
    """A `RecordRenderer`, whose rows may also be drawn from the tables that they live in.

    A record is gs-raster's own: words of reach are ranges of tiles.

    Args:
        options: how rows are projected.
        absgrad: absolute gradients travel, too.
    """

    def __init__(self, options: RenderOptions, *, absgrad: bool) -> None:
        self._options = options
        self._absgrad = absgrad
        self._cameras = Cameras()
        self._rows = gs_raster.CheckCache(gs_raster.Rows)
        self._sums = gs_raster.CheckCache(gs_raster.RowGradients)
        self._check: gs_raster.RoomCheck | None = None
        self._workspace = gs_raster.Workspace()

    def write(self, splats: Splats, out: SplatRecords) -> None:
        """See `RecordRenderer`. Two kernels, two more for empty records."""
        projected, keys = _projected(splats), keys_of(splats)
        n = len(projected.records)
        out.check_room(n)
        out.words[:n].copy_(projected.splats().records)
        out.keys[:n, 0].copy_(keys)
        out.make_empty(n)

    def draw(
        self,
        records: SplatRecords,
        view: View,
        rect: Rect,
        *,
        room: int | None = None,
        depth: bool = False,
    ) -> DrawnRecords:
        """See `RecordRenderer`. Without a room it waits for the stream once, without Python's lock,
        and sorts twice.

        What was drawn lasts until the next one is drawn; its image, until its gradient is sent
        back.
        """
        splats = gs_raster.Splats(records.words, self._cameras.of(view), records.keys.view(-1))
        if room is None:
            room = gs_raster.sort(splats, rect).n_instances
        check = self._check_on(records.words.device)
        check.begin()
        drawing = gs_raster.draw_splats(
            splats,
            rect,
            room=room,
            depth=depth,
            check_room=check,
            workspace=self._workspace,
            absgrad=self._absgrad,
        )
        return RasterDrawnRecords(drawing, check)

    def send_back(
        self,
        drawn: DrawnRecords,
        gradient: Tensor,
        of_alpha: Tensor | None = None,
        of_depth: Tensor | None = None,
    ) -> Tensor:
        """See `RecordRenderer`. Does not synchronise."""
        assert isinstance(drawn, RasterDrawnRecords)
        return gs_raster.draw_splats_backward(
            drawn.drawing, gradient.contiguous(), of_alpha, of_depth, absgrad=self._absgrad
        )

    def backward(self, splats: Splats, gradients: Tensor) -> None:
        """See `RecordRenderer`. Does not synchronise."""
        projected = _projected(splats)
        whole = gradients[: len(projected.records)]
        if self._absgrad:
            splats.shifted.append(splats.means2d)
            splats.means2d.absgrad = whole[:, ABSGRAD]  # type: ignore[attr-defined]
        fields = [getattr(splats, name) for name in GRADIENTS]
        with torch.autograd.set_multithreading_enabled(False):
            torch.autograd.backward(fields, [whole[:, place] for place in GRADIENTS.values()])

    def project_views(
        self, outgoing: Sequence[Outgoing], out: SplatRecords, *, sh_degree: int
    ) -> Projected:
        """See `TableRecordRenderer`. A kernel a view, and one for each eight views."""
        views = [
            gs_raster.ViewRows(
                self._rows.of(rows.columns, slots=rows.ids, sh_slots=rows.slots),
                self._cameras.of(view),
                segment,
            )
            for rows, view, segment in outgoing
        ]
        native = gs_raster.project_views(
            views,
            outgoing[0].rows.keys,
            records=out.words,
            record_keys=out.keys.view(-1),
            sh_degree=sh_degree,
            options=self._options,
            radii=True,
        )
        return Projected(outgoing, native)

    def project_views_backward(
        self, projected: Projected, gradients: Tensor, *, direct: Direct | None = None
    ) -> list[Splats] | None:
        """See `TableRecordRenderer`. A kernel a view."""
        native, outgoing = projected.native, projected.outgoing
        gs_raster.project_views_backward(
            native,
            gradients,
            out=self._sums.of(outgoing[0].rows.sums),
            places=[_as_int32(one.rows.place) for one in outgoing],
            statistics=[statistics_of(direct, one.view) for one in outgoing],
        )
        if direct is not None:
            return None
        return [
            self._told(native.splats(k), view, gradients[segment.start :])
            for k, (_, view, segment) in enumerate(outgoing)
        ]

    def _told(self, found: gs_raster.Splats, view: View, gradients: Tensor) -> Splats:
        """Splats with what density control reads."""
        whole = gradients[: found.n]
        absgrad = whole[:, ABSGRAD] if self._absgrad else None
        return splats_of(found, view, whole[:, GRADIENTS["means2d"]], absgrad)

    def release(self, *, above: int = 0) -> None:
        """See `RecordRenderer`."""
        if self._workspace.n_bytes > above:
            self._workspace.release()

    def _check_on(self, device: torch.device) -> gs_raster.RoomCheck:
        if self._check is None:
            self._check = gs_raster.RoomCheck(1, device)
        return self._check


def _as_int32(place: Tensor | None) -> Tensor | None:
    return place if place is None or place.dtype is torch.int32 else place.int()


def _projected(splats: Splats) -> ProjectedSplats:
    if not isinstance(splats, RasterSplats) or splats.projected is None:
        raise TypeError(
            f"splats must come from RasterRenderer.project, got {type(splats).__name__}"
        )
    return splats.projected
