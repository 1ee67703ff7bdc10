# SPDX-License-Identifier: Apache-2.0
"""Rows of several views to splats that travel, and gradients of splats back, in one call each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.addresses import address, check, check_alignment
from gs_raster.cuda.indices import check_indices
from gs_raster.cuda.place import Place, place_of
from gs_raster.cuda.projection import check_out, projection_of
from gs_raster.cuda.rows import RowGradients, Rows
from gs_raster.cuda.splats import WORDS, Splats
from gs_raster.cuda.statistics import NO_STATISTICS, Statistics
from gs_raster.cuda.views import View
from gs_raster.types import Options


class ViewRows(NamedTuple):
    """What one view sees of the rows in some tables, and where its splats go.

    Attributes:
        rows: R of them; R may be 0.
        view: on the rows' device.
        records: (S, 12) int32, S >= R, contiguous, aligned to 16 bytes; written.
        keys: (S,) int32; written.
    """

    rows: Rows
    view: View
    records: Tensor
    keys: Tensor


@dataclass(frozen=True, eq=False)
class ProjectedViews:
    """Views that were projected together.

    Attributes:
        views: as they were given.
        radii: (R of all views, 2) int32 half extents, view after view; None if not asked for.
    """

    views: tuple[ViewRows, ...]
    radii: Tensor | None
    _native: list[_core.ViewSplatsAt]

    def splats(self, k: int) -> Splats:
        """Those of the k-th view's rows, in the view's records."""
        one, radii = self.views[k], None
        n = one.rows.n
        if self.radii is not None:
            first = sum(view.rows.n for view in self.views[:k])
            radii = self.radii[first : first + n]
        return Splats(one.records[:n], one.view, one.keys[:n], radii)


def project_views(
    views: Sequence[ViewRows],
    keys: Tensor,
    *,
    sh_degree: int,
    options: Options = Options(),  # noqa: B008 (immutable)
    radii: bool = False,
) -> ProjectedViews:
    """Project rows into several views, as :func:`gs_raster.project` does, with their keys. Behind
    the R splats of a view come empty records, all 0 and of key -1.

    Args:
        views: what each sees, and where its splats go. All rows are in the same tables.
        keys: (N,) int32, distinct, at least 0: of slot s of the geometry.
        sh_degree, options: as for :func:`gs_raster.project`.
        radii: also give the half extents.

    Raises:
        TypeError: a dtype differs.
        ValueError: no view is given, not all is on one CUDA device, a shape differs, there are more
            rows than records, or ``sh_degree`` or an option is out of range.
        CudaError: this build has no CUDA, or a launch failed.

    Asynchrony: a kernel a view, and one for each eight views, on torch's current stream; does not
        synchronise.
    """
    if not views:
        raise ValueError("views must be at least one, got none")
    at = place_of("rows", views[0].rows.means)
    n_slots = views[0].rows.means.shape[0]
    of_slots = address("keys", keys, (n_slots,), torch.int32, at.device)
    check_indices("keys", keys, None, distinct=True)
    extents, to_extents = None, 0
    if radii:
        extents = at.empty(sum(one.rows.n for one in views), 2, dtype=torch.int32)
        to_extents = extents.data_ptr()
    native = []
    for one in views:
        native.append(_native(one, n_slots, sh_degree, options, to_extents, at))
        if radii:
            to_extents += 8 * one.rows.n
    _core.project_views_cuda(native, of_slots, at.number, at.stream)
    return ProjectedViews(tuple(views), extents, native)


def project_views_backward(
    projected: ProjectedViews,
    gradients: Sequence[Tensor],
    *,
    out: RowGradients,
    places: Sequence[Tensor | None],
    statistics: Sequence[Statistics | None],
) -> None:
    """Add the gradients of rows from those of their splats, view after view, as
    :func:`gs_raster.project_backward` does.

    Args:
        projected: from :func:`project_views`; rows, views and records unchanged since.
        gradients: (S, 12) float32 of each view, a row for each record.
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
    for name, given in (
        ("gradients", gradients),
        ("places", places),
        ("statistics", statistics),
    ):
        if len(given) != len(views):
            raise ValueError(f"{name} must be {len(views)}, one a view, got {len(given)}")
    at = place_of("rows", views[0].rows.means)
    back = []
    for one, gradient, place, told in zip(views, gradients, places, statistics, strict=True):
        rows = one.rows
        check("gradients", gradient, (one.records.shape[0], WORDS), torch.float32, at.device)
        check_alignment("gradients", gradient, 16)
        check_out(out, rows, place, at)
        sums = NO_STATISTICS
        if told is not None:
            if projected.radii is None:
                raise ValueError("views must have radii for statistics, got radii=False")
            sums = told.native(rows.means.shape[0], at.device)
        back.append((gradient.data_ptr(), out.native(place, add=True), sums))
    _core.project_views_backward_cuda(projected._native, back, at.number, at.stream)


def _native(
    one: ViewRows, n_slots: int, sh_degree: int, options: Options, extents: int, at: Place
) -> _core.ViewSplatsAt:
    """A checked view for the native functions."""
    rows, room = one.rows, one.records.shape[0]
    if rows.means.shape[0] != n_slots or rows.means.device != at.device:
        raise ValueError(
            f"rows of all views must be in the same tables of {n_slots} rows on {at.device}, got "
            f"{rows.means.shape[0]} on {rows.means.device}"
        )
    check("records", one.records, (-1, WORDS), torch.int32, at.device)
    check_alignment("records", one.records, 16)
    check("keys of records", one.keys, (room,), torch.int32, at.device)
    if rows.n > room:
        raise ValueError(f"records must have room for {rows.n} splats, got {room}")
    return _core.ViewSplatsAt(
        rows.native(),
        projection_of(rows, one.view, sh_degree, options, at),
        room,
        one.records.data_ptr(),
        one.keys.data_ptr(),
        extents,
    )
