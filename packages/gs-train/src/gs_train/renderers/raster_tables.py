# SPDX-License-Identifier: Apache-2.0
"""gs-raster's kernels on rows where they lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import gs_raster
from gs_train.renderers.protocol import Rect, RenderOptions, Splats, View
from gs_train.renderers.raster_views import Cameras, splats_of, statistics_of
from gs_train.renderers.tables import Direct, Drawn, TableRows


@dataclass(eq=False)
class RasterDrawn:
    """A `Drawn` with what its gradient needs."""

    image: Tensor
    room: int
    for_gradient: Tensor | None
    drawing: gs_raster.Drawing
    rows: TableRows
    view: View

    @property
    def alpha(self) -> Tensor:
        return self.drawing.alpha

    @property
    def depth(self) -> Tensor | None:
        return self.drawing.depth


class RasterTables:
    """A `TableRenderer`.

    Args:
        options: how rows are projected.
        device: the CUDA device of rows and views.
        absgrad: fill ``Splats.absgrad``.
    """

    def __init__(self, options: RenderOptions, device: torch.device, *, absgrad: bool) -> None:
        self._options = options
        self._device = device
        self._absgrad = absgrad
        self._most_views = 0  # of a batch that there was
        self._check: gs_raster.RoomCheck
        self._cameras = Cameras()
        self._rows = gs_raster.CheckCache(gs_raster.Rows)
        self._sums = gs_raster.CheckCache(gs_raster.RowGradients)
        self._workspace = gs_raster.Workspace()

    def begin(self, n_views: int) -> None:
        """See `TableRenderer`."""
        if n_views > self._most_views:
            self._check = gs_raster.RoomCheck(n_views, self._device)
            self._most_views = n_views
        self._check.begin()

    def draw(
        self,
        rows: TableRows,
        view: View,
        rect: Rect,
        *,
        sh_degree: int,
        room: int,
        index: int,
        direct: Direct | None = None,
        depth: bool = False,
    ) -> Drawn:
        """See `TableRenderer`."""
        drawing = gs_raster.draw(
            self._rows.of(rows.columns, slots=rows.ids, sh_slots=rows.slots),
            self._cameras.of(view),
            sh_degree=sh_degree,
            room=room,
            options=self._options,
            rect=rect,
            keys=rows.keys,
            depth=depth,
            check_room=self._check,
            index=index,
            # Of others something lives on while the next view is drawn.
            workspace=None if direct is None else self._workspace,
            absgrad=self._absgrad,
            radii=direct is None or direct.sums is not None,
        )
        return RasterDrawn(drawing.image, room, drawing.for_gradient, drawing, rows, view)

    def send_back(
        self,
        drawn: Drawn,
        gradient: Tensor,
        direct: Direct | None,
        of_alpha: Tensor | None = None,
        of_depth: Tensor | None = None,
    ) -> Splats | None:
        """See `TableRenderer`."""
        assert isinstance(drawn, RasterDrawn)
        place = drawn.rows.place
        of_splats = gs_raster.draw_backward(
            drawn.drawing,
            gradient,
            of_alpha,
            of_depth,
            out=self._sums.of(drawn.rows.sums),
            places=None if place is None else place.int(),
            absgrad=self._absgrad,
            statistics=statistics_of(direct, drawn.view),
            check_room=self._check,
            gives_splats=direct is None,
        )
        if of_splats is None:
            return None
        return splats_of(
            drawn.drawing.splats,
            drawn.view,
            of_splats[:, 0:2],
            of_splats[:, 10:12] if self._absgrad else None,
        )

    def n_intersections(self, index: int) -> int:
        """See `TableRenderer`."""
        return self._check.wait_for(index)

    def go_on(self) -> None:
        """See `TableRenderer`."""
        self._check.go_on()

    def release(self, *, above: int = 0) -> None:
        """See `TableRenderer`."""
        if self._workspace.n_bytes > above:
            self._workspace.release()
