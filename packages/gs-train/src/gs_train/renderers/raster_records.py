# SPDX-License-Identifier: Apache-2.0
"""gs-raster's splats as records: its own, drawn where they arrive without a copy."""

from __future__ import annotations

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
    SplatRecords,
    keys_of,
)
from gs_train.renderers.tables import Direct, TableRows


@dataclass
class RasterSplats(Splats):
    """Splats with what their rectangles share: records and order."""

    projected: ProjectedSplats | None = None


@dataclass(eq=False)
class RasterDrawnRecords:
    """A `DrawnRecords` with what its gradient needs."""

    image: Tensor
    splats: gs_raster.Splats
    lists: gs_raster.TileLists
    pixels: gs_raster.Pixels
    check: gs_raster.RoomCheck | None

    @property
    def alpha(self) -> Tensor:
        return self.pixels.alpha

    @property
    def depth(self) -> Tensor | None:
        return self.pixels.depth

    @property
    def n_intersections(self) -> int:
        if self.check is None:
            return self.lists.n_instances
        count = self.check.wait_for(0)
        if count > gs_raster.MAX_INSTANCES:
            raise TooManyIntersectionsError(count)
        return count

    def column_counts(self) -> Tensor:
        """See `DrawnRecords`."""
        rect = self.lists.rect
        n_columns = -(-rect.x1 // TILE) - rect.x0 // TILE
        return self.lists.begins.diff().view(-1, n_columns).sum(0)


@dataclass(eq=False)
class Projected:
    """Rows of tables that have been projected into a view.

    Attributes:
        rows: of the view.
        native: the same for gs-raster.
        splats: in the records that they were written to.
    """

    rows: TableRows
    native: gs_raster.Rows
    splats: gs_raster.Splats


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
        self._workspace = gs_raster.Workspace(holds_gradient=False)

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
        """See `RecordRenderer`. Without a room it waits for the stream once, without Python's lock.

        The number of intersections of one drawing is asked for before the next one is drawn.
        """
        splats = gs_raster.Splats(records.words, self._cameras.of(view), records.keys.view(-1))
        check = None
        if room is not None and splats.n:
            check = self._check_on(records.words.device)
            check.begin()
        lists = gs_raster.sort(splats, rect, room=room, check_room=check, workspace=self._workspace)
        pixels = gs_raster.blend(splats, lists, depth=depth)
        return RasterDrawnRecords(pixels.image, splats, lists, pixels, check)

    def send_back(
        self,
        drawn: DrawnRecords,
        gradient: Tensor,
        of_alpha: Tensor | None = None,
        of_depth: Tensor | None = None,
    ) -> Tensor:
        """See `RecordRenderer`. Does not synchronise."""
        assert isinstance(drawn, RasterDrawnRecords)
        return gs_raster.blend_backward(
            drawn.splats,
            drawn.lists,
            drawn.pixels,
            gradient.contiguous(),
            of_alpha,
            of_depth,
            absgrad=self._absgrad,
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

    def project(
        self, rows: TableRows, view: View, out: SplatRecords, *, sh_degree: int
    ) -> Projected:
        """Project rows of tables, and write their splats, with empty records behind them. Two
        kernels, two more for empty records; does not synchronise.

        Args:
            rows: R of them.
            out: room for R or more, left alone until the gradient has come back.
        """
        n = rows.ids.shape[0]
        out.check_room(n)
        torch.index_select(rows.keys, 0, rows.ids, out=out.keys[:n, 0])
        out.make_empty(n)
        native = self._rows.of(rows.columns, slots=rows.ids, sh_slots=rows.slots)
        splats = gs_raster.project(
            native,
            self._cameras.of(view),
            sh_degree=sh_degree,
            options=self._options,
            radii=True,
            out=out.words[:n],
        )
        return Projected(rows, native, splats)

    def project_backward(
        self,
        projected: Projected,
        gradients: Tensor,
        view: View,
        *,
        sh_degree: int,
        direct: Direct | None = None,
    ) -> Splats | None:
        """See `TableRecordRenderer`. Does not synchronise."""
        rows, found = projected.rows, projected.splats
        whole = gradients[: found.n]
        gs_raster.project_backward(
            projected.native,
            found.view,
            found,
            whole,
            sh_degree=sh_degree,
            options=self._options,
            out=self._sums.of(rows.sums),
            places=None if rows.place is None else rows.place.int(),
            statistics=statistics_of(direct, view),
        )
        if direct is not None:
            return None
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


def _projected(splats: Splats) -> ProjectedSplats:
    if not isinstance(splats, RasterSplats) or splats.projected is None:
        raise TypeError(
            f"splats must come from RasterRenderer.project, got {type(splats).__name__}"
        )
    return splats.projected
