# SPDX-License-Identifier: Apache-2.0
"""gs-raster's kernels on rows where they lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import gs_raster
from gs_train.renderers.protocol import Rect, RenderOptions, Splats, View
from gs_train.renderers.tables import Drawn, TableRows


@dataclass(frozen=True, eq=False)
class RasterDrawn:
    """A `Drawn` with what its gradient needs."""

    image: Tensor
    room: int
    drawing: gs_raster.Drawing
    rows: TableRows
    view: View


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

    def begin(self, n_views: int) -> None:
        """See `TableRenderer`."""
        if n_views > self._most_views:
            self._check = gs_raster.RoomCheck(n_views, self._device)
            self._most_views = n_views
        self._check.begin()

    def draw(
        self, rows: TableRows, view: View, rect: Rect, *, sh_degree: int, room: int, index: int
    ) -> Drawn:
        """See `TableRenderer`."""
        drawing = gs_raster.draw(
            gs_raster.Rows.of(rows.columns, rows.ids, rows.slots),
            gs_raster.View(view.viewmat.contiguous(), view.K.contiguous(), view.width, view.height),
            sh_degree=sh_degree,
            room=room,
            options=self._options,
            rect=rect,
            keys=rows.keys,
            check_room=self._check,
            index=index,
        )
        return RasterDrawn(drawing.image, room, drawing, rows, view)

    def send_back(self, drawn: Drawn, gradient: Tensor) -> Splats:
        """See `TableRenderer`."""
        assert isinstance(drawn, RasterDrawn)
        rows, drawing = drawn.rows, drawn.drawing
        of_splats = gs_raster.draw_backward(
            drawing,
            gradient,
            out=gs_raster.RowGradients(**rows.sums),
            places=None if rows.place is None else rows.place.int(),
            absgrad=self._absgrad,
            check_room=self._check,
        )
        found = drawing.splats
        assert found.radii is not None
        splats = Splats(
            means2d=found.means2d,
            conics=found.conics,
            depths=found.depths,
            radii=found.radii,
            opacities=found.opacities,
            colors=found.colors,
            view=drawn.view,
        )
        splats.means2d.grad = of_splats[:, 0:2]
        if self._absgrad:
            splats.shifted.append(splats.means2d)
            splats.means2d.absgrad = of_splats[:, 10:12]  # type: ignore[attr-defined]
        return splats

    def n_intersections(self, index: int) -> int:
        """See `TableRenderer`."""
        return self._check.wait_for(index)

    def go_on(self) -> None:
        """See `TableRenderer`."""
        self._check.overflowed.zero_()
