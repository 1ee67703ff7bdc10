# SPDX-License-Identifier: Apache-2.0
"""Rows of several views to splats that travel, and gradients of splats back, in one call each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.addresses import address, check
from gs_raster.cuda.indices import check_indices
from gs_raster.cuda.place import place_of
from gs_raster.cuda.projection import check_out, projection_of
from gs_raster.cuda.rows import RowGradients, Rows
from gs_raster.cuda.splats import WORDS, Splats
from gs_raster.cuda.statistics import NO_STATISTICS, Statistics
from gs_raster.cuda.views import View
from gs_raster.types import Options


class ViewRows(NamedTuple):
    """What one view sees of the rows in some tables, and which of the records its splats go to.

    Attributes:
        rows: R of them; R may be 0.
        view: on the rows' device.
        segment: of the records, R or more without a step between them; no other view's.
    """

    rows: Rows
    view: View
    segment: range


@dataclass(frozen=True, eq=False)
class ProjectedViews:
    """Views that were projected together.

    Attributes:
        views: as they were given.
        records, record_keys: of all views, as they were given.
        radii: (R of all views, 2) int32 half extents, view after view; None if not asked for.
    """

    views: tuple[ViewRows, ...]
    records: Tensor
    record_keys: Tensor
    radii: Tensor | None
    _native: list[_core.ViewSplatsAt]

    def splats(self, k: int) -> Splats:
        """Those of the k-th view's rows, in the view's records."""
        one, radii = self.views[k], None
        n, start = one.rows.n, one.segment.start
        if self.radii is not None:
            first = sum(view.rows.n for view in self.views[:k])
            radii = self.radii[first : first + n]
        records, keys = self.records[start : start + n], self.record_keys[start : start + n]
        return Splats(records, one.view, keys, radii)


def project_views(
    views: Sequence[ViewRows],
    keys: Tensor,
    *,
    records: Tensor,
    record_keys: Tensor,
    sh_degree: int,
    options: Options = Options(),  # noqa: B008 (immutable)
    radii: bool = False,
) -> ProjectedViews:
    """Project rows into several views, as :func:`gs_raster.project` does, with their keys. Behind
    the R splats of a view come empty records, all 0 and of key -1.

    Args:
        views: what each sees, and where its splats go. All rows are in the same tables.
        keys: (N,) int32, distinct, at least 0: of slot s of the geometry.
        records: (S, 12) int32, contiguous, aligned to 16 bytes; the segments are written.
        record_keys: (S,) int32; likewise.
        sh_degree, options: as for :func:`gs_raster.project`.
        radii: also give the half extents.

    Raises:
        TypeError: a dtype differs.
        ValueError: no view is given, not all is on one CUDA device, a shape differs, a segment does
            not lie in the records, a view has more rows than records, or ``sh_degree`` or an option
            is out of range.
        CudaError: this build has no CUDA, or a launch failed.

    Asynchrony: a kernel a view, and one for each eight views, on torch's current stream; does not
        synchronise.
    """
    if not views:
        raise ValueError("views must be at least one, got none")
    means = views[0].rows.means
    at = place_of("rows", means)
    of_slots = address("keys", keys, (means.shape[0],), torch.int32, at.device)
    check_indices("keys", keys, None, distinct=True)
    check("records", records, (-1, WORDS), torch.int32, at.device, alignment=16)
    check("record_keys", record_keys, (records.shape[0],), torch.int32, at.device)
    room, to_records, to_keys = records.shape[0], records.data_ptr(), record_keys.data_ptr()
    sizes = [one.rows.n for one in views]
    extents, to_extents = None, 0
    if radii:
        extents = at.empty(sum(sizes), 2, dtype=torch.int32)
        to_extents = extents.data_ptr()
    native = []
    for (rows, view, segment), n in zip(views, sizes, strict=True):
        _check_tables(rows, means)
        _check_segment(segment, n, room)
        native.append(
            _core.ViewSplatsAt(
                rows.native(),
                projection_of(rows, view, sh_degree, options, at),
                len(segment),
                to_records + 4 * WORDS * segment.start,
                to_keys + 4 * segment.start,
                to_extents,
            )
        )
        if radii:
            to_extents += 8 * n
    _core.project_views_cuda(native, of_slots, at.number, at.stream)
    return ProjectedViews(tuple(views), records, record_keys, extents, native)


def project_views_backward(
    projected: ProjectedViews,
    gradients: Tensor,
    *,
    out: RowGradients,
    places: Sequence[Tensor | None],
    statistics: Sequence[Statistics | None],
) -> None:
    """Add the gradients of rows from those of their splats, view after view, as
    :func:`gs_raster.project_backward` does.

    Args:
        projected: from :func:`project_views`; rows, views and records unchanged since.
        gradients: (S, 12) float32, contiguous, aligned to 16 bytes: a row for each record.
        out: added to.
        places: (R,) int32 of each view, distinct: the gradient of row i is added to row
            ``places[i]`` of ``out``. None: to row i.
        statistics: of each view, added to; None: of none.

    Raises:
        TypeError, ValueError, CudaError: as :func:`gs_raster.project_backward`; ValueError also for
            other than one of each a view.

    Asynchrony: a kernel a view on torch's current stream; does not synchronise. The same inputs
        give the same bits.
    """
    views = projected.views
    for name, given in (("places", places), ("statistics", statistics)):
        if len(given) != len(views):
            raise ValueError(f"{name} must be {len(views)}, one a view, got {len(given)}")
    at = place_of("rows", views[0].rows.means)
    n_records = projected.records.shape[0]
    check("gradients", gradients, (n_records, WORDS), torch.float32, at.device, alignment=16)
    first = gradients.data_ptr()
    back = []
    for (rows, _, segment), place, told in zip(views, places, statistics, strict=True):
        check_out(out, rows, place, at)
        sums = NO_STATISTICS
        if told is not None:
            if projected.radii is None:
                raise ValueError("views must have radii for statistics, got radii=False")
            sums = told.native(rows.means.shape[0], at.device)
        back.append((first + 4 * WORDS * segment.start, out.native(place, add=True), sums))
    _core.project_views_backward_cuda(projected._native, back, at.number, at.stream)


def _check_tables(rows: Rows, means: Tensor) -> None:
    """Raise ValueError unless rows are in tables as long as these means, on the same device."""
    own = rows.means
    if own is means:
        return
    if own.shape[0] != means.shape[0] or own.device != means.device:
        raise ValueError(
            f"rows of all views must be in the same tables of {means.shape[0]} rows on "
            f"{means.device}, got {own.shape[0]} on {own.device}"
        )


def _check_segment(segment: range, n_rows: int, n_records: int) -> None:
    """Raise unless these are records that so many rows fit into."""
    if not isinstance(segment, range):
        raise TypeError(f"segment must be a range, got {type(segment).__name__}")
    if segment.step != 1 or not 0 <= segment.start <= segment.stop <= n_records:
        raise ValueError(f"segment must lie in the {n_records} records, got {segment}")
    if n_rows > len(segment):
        raise ValueError(f"segment must have room for {n_rows} splats, got {len(segment)}")
