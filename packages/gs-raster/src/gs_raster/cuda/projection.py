# SPDX-License-Identifier: Apache-2.0
"""Rows to splats, and gradients of splats to those of rows, on a CUDA device."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.addresses import address, check, check_alignment
from gs_raster.cuda.indices import check_indices
from gs_raster.cuda.place import Place, device_name, place_of
from gs_raster.cuda.rows import RowGradients, Rows
from gs_raster.cuda.splats import WORDS, Splats
from gs_raster.cuda.statistics import NO_STATISTICS, Statistics
from gs_raster.cuda.views import View
from gs_raster.numbers import whole
from gs_raster.types import Options

_KNOWN: WeakKeyDictionary[View, tuple[tuple[int, ...], Options, Any]] = WeakKeyDictionary()
"""What `projection_of` made of a view last, and of which numbers and options."""


def project(
    rows: Rows,
    view: View,
    *,
    sh_degree: int,
    options: Options = Options(),  # noqa: B008 (immutable)
    keys: Tensor | None = None,
    radii: bool = False,
    out: Tensor | None = None,
) -> Splats:
    """Project rows into a view and evaluate their colours.

    EWA splatting (Zwicker et al. 2001) with the semantics of gsplat 1.5.3. A row that is not finite
    does not show, nor does any row in a view that is not finite.

    Args:
        rows: R rows; R may be 0.
        view: on the rows' device.
        sh_degree: 0 to 3, at most what ``rows.shN`` holds.
        options: which rows show, and how.
        keys: (R,) int32, distinct, at least 0: splats of equal depth are blended in the order of
            their keys. None: in the order of the rows. Values are trusted unless
            ``GS_CHECK_INDEX=1``.
        radii: also give the half extents.
        out: (R, 12) int32 for the records, contiguous, aligned to 16 bytes; allocated when None.

    Raises:
        TypeError: a dtype differs.
        ValueError: rows or view are not on one CUDA device, a shape differs, or ``sh_degree`` or an
            option is out of range.
        CudaError: this build has no CUDA, or the launch failed.

    Asynchrony: one kernel on torch's current stream; does not synchronise.
    Cost: reads each row and writes 48 bytes of it, 8 more with ``radii``. GIL released.
    """
    at = place_of("rows", rows.means)
    native = projection_of(rows, view, sh_degree, options, at)
    if out is None:
        out = at.empty(rows.n, WORDS, dtype=torch.int32)
    else:
        check("out", out, (rows.n, WORDS), torch.int32, at.device)
        check_alignment("out", out, 16)
    extents = at.empty(rows.n, 2, dtype=torch.int32) if radii else None
    splats = Splats(out, view, keys, extents)
    if rows.n:
        at_extents = 0 if extents is None else extents.data_ptr()
        _core.project_cuda(rows.native(), native, out.data_ptr(), at_extents, at.number, at.stream)
    return splats


def project_backward(
    rows: Rows,
    view: View,
    splats: Splats,
    gradients: Tensor,
    *,
    sh_degree: int,
    options: Options = Options(),  # noqa: B008 (immutable)
    out: RowGradients | None = None,
    places: Tensor | None = None,
    statistics: Statistics | None = None,
) -> RowGradients:
    """The gradients of rows from those of their splats.

    Args:
        rows, view, sh_degree, options: as for :func:`project`, unchanged since.
        splats: what :func:`project` made of them.
        gradients: (R, 12) float32, from :func:`gs_raster.blend_backward`.
        out: added to; None: new rows, one for each row, 0 for rows that do not show.
        places: (R,) int32, distinct: the gradient of row i is added to row ``places[i]`` of
            ``out``. None: to row i. Values are trusted unless ``GS_CHECK_INDEX=1``.
        statistics: added to.

    Returns:
        ``out`` if given.

    Raises:
        TypeError, ValueError, CudaError: as :func:`project`; ValueError also for places without
            ``out``, for an ``out`` of too few rows or of other bases, and for statistics of splats
            without radii.
        IndexError: a place is out of range, with ``GS_CHECK_INDEX=1`` alone.

    Asynchrony: one kernel on torch's current stream; does not synchronise. The same inputs give the
        same bits.
    """
    at = place_of("rows", rows.means)
    native = projection_of(rows, view, sh_degree, options, at)
    check("splats.records", splats.records, (rows.n, WORDS), torch.int32, at.device)
    gradient = address("gradients", gradients, (rows.n, WORDS), torch.float32, at.device)
    check_alignment("gradients", gradients, 16)
    add = out is not None
    if out is None:
        if places is not None:
            raise ValueError("places must come with out, got out=None")
        out = RowGradients.empty(rows.n, rows.n_bases, at.device)
    else:
        check_out(out, rows, places, at)
    told, radii = NO_STATISTICS, 0
    if statistics is not None:
        if splats.radii is None:
            raise ValueError("splats must have radii for statistics, got radii=None")
        told, radii = statistics.native(rows.means.shape[0], at.device), splats.radii.data_ptr()
    if rows.n:
        _core.project_backward_cuda(
            rows.native(),
            native,
            splats.records.data_ptr(),
            gradient,
            out.native(places, add=add),
            told,
            radii,
            at.number,
            at.stream,
        )
    return out


def check_sh_degree(sh_degree: Any, n_bases: int) -> int:
    """A degree of spherical harmonics that a number of bases suffices for.

    Raises:
        TypeError: no whole number. ValueError: out of range.
    """
    degree = whole("sh_degree", sh_degree)
    if not 0 <= degree <= 3 or (degree + 1) ** 2 - 1 > n_bases:
        raise ValueError(
            f"sh_degree must be 0 to 3 and need at most the {n_bases} bases of shN, got {degree}"
        )
    return degree


def projection_of(
    rows: Rows, view: View, sh_degree: int, options: Options, at: Place
) -> _core.ProjectionAt:
    """A checked view with the rules by which rows show in it, for the native functions."""
    if view.viewmat.device != at.device:
        raise ValueError(
            f"view must be on {at.device} as rows are, got {device_name(view.viewmat.device)}"
        )
    of_view = view.viewmat.data_ptr(), view.K.data_ptr(), view.width, view.height
    key, known = (*of_view, sh_degree, rows.n_bases), _KNOWN.get(view)
    is_plain = type(sh_degree) is int  # 3.0, which is no degree, equals 3
    if is_plain and known is not None and known[0] == key and known[1] is options:
        found: _core.ProjectionAt = known[2]
        return found
    degree = check_sh_degree(sh_degree, rows.n_bases)
    antialiased, eps2d, near, far, radius_clip = options.checked()
    made = _core.ProjectionAt(*of_view, (antialiased, eps2d, near, far, radius_clip), degree)
    _KNOWN[view] = key, options, made
    return made


def check_out(out: RowGradients, rows: Rows, places: Tensor | None, at: Place) -> None:
    """Raise unless the gradients of rows can be added to ``out`` at ``places``."""
    if out.means.device != at.device:
        raise ValueError(
            f"out must be on {at.device} as rows are, got {device_name(out.means.device)}"
        )
    if out.shN.shape[1] != rows.n_bases:
        raise ValueError(f"out.shN must have {rows.n_bases} bases, got {out.shN.shape[1]}")
    if places is not None:
        check("places", places, (rows.n,), torch.int32, at.device)
        check_indices("places", places, out.n, distinct=True)
        return
    n = rows.n
    if n <= out.n:
        return
    for name, column in out.columns.items():
        found = column.shape[0]
        if found < n:
            raise ValueError(f"out.{name} must have at least {n} rows, got {found}")
