# SPDX-License-Identifier: Apache-2.0
"""A view from tables to pixels, and gradients back to tables, in one call each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.addresses import address, check, span
from gs_raster.cuda.indices import check_indices
from gs_raster.cuda.place import place_of
from gs_raster.cuda.projection import check_out, projection_of
from gs_raster.cuda.room_check import RoomCheck
from gs_raster.cuda.rows import RowGradients, Rows
from gs_raster.cuda.sorting import corners, tiles_of
from gs_raster.cuda.splats import WORDS, Splats
from gs_raster.cuda.statistics import NO_STATISTICS, Statistics
from gs_raster.cuda.views import View
from gs_raster.numbers import whole
from gs_raster.types import MAX_INSTANCES, Options, Rect

_REAL = torch.float32
_ALIGNMENT = 256  # of arrays in a drawing's memory


@dataclass(frozen=True, eq=False)
class Drawing:
    """A view that has been drawn, with what its gradient reads.

    Attributes:
        image: (h, w, 3) float32.
        alpha: (h, w) float32.
        depth: (h, w) float32 sum of weight times depth; None if not asked for.
        rows, view, rect: what was drawn.
        room: instances that there was room for.
    """

    image: Tensor
    alpha: Tensor
    depth: Tensor | None
    rows: Rows
    view: View
    rect: Rect
    room: int
    _scene: _core.SceneAt
    _memory: Tensor
    _alive: tuple[Any, ...]

    @property
    def splats(self) -> Splats:
        """The rows as splats of the view, with their radii; in the drawing's memory."""
        return _splats_in(self._memory, self.rows.n, self.view)


def draw(
    rows: Rows,
    view: View,
    *,
    sh_degree: int,
    room: int,
    options: Options = Options(),  # noqa: B008 (immutable)
    rect: Rect | None = None,
    keys: Tensor | None = None,
    background: Tensor | None = None,
    depth: bool = False,
    check_room: RoomCheck | None = None,
    index: int = 0,
) -> Drawing:
    """Draw a rectangle of a view: :func:`gs_raster.project`, :func:`gs_raster.sort` and
    :func:`gs_raster.blend` in one call that waits for nothing.

    Args:
        rows: R rows, read where they lie; unchanged until the gradient has been taken.
        view, sh_degree, options: as for :func:`gs_raster.project`.
        room: most instances (pairs of a splat and a tile) that can be listed. Where there are more,
            the image is the background and its gradient 0: see ``check_room``.
        rect: pixels of the view; all of them when None.
        keys: (N,) int32, distinct, at least 0: of slot s of the geometry, which orders splats of
            equal depth. None: the order of the rows.
        background: (3,) float32 on the device; None for black.
        depth: also sum depths.
        check_room: told how many instances there are.
        index: of the view in its batch, for ``check_room``.

    Raises:
        TypeError: a dtype differs.
        ValueError: rows or view are not on one CUDA device, a shape differs, or an argument is out
            of range.
        CudaError: this build has no CUDA, or a launch failed.

    Asynchrony: enqueued on torch's current stream; does not synchronise. The same inputs give the
        same bits, those of the three stages.
    Cost: memory as :func:`gs_raster.workspace_bytes` says, for ``room`` instances.
    """
    at = place_of("rows", rows.means)
    rect = view.checked_rect(rect)
    tiles_of(rect)  # raises where there are too many
    if not 0 <= whole("room", room) <= MAX_INSTANCES:
        raise ValueError(f"room must be from 0 to {MAX_INSTANCES}, got {room}")
    n_slots = rows.means.shape[0]
    if keys is not None:
        check_indices("keys", keys, None, distinct=True)
    scene = _core.SceneAt(
        rows.native(),
        address("keys", keys, (n_slots,), torch.int32, at.device),
        projection_of(rows, view, sh_degree, options, at),
        corners(rect),
        address("background", background, (3,), _REAL, at.device),
    )
    h, w = rect.height, rect.width
    image, alpha = at.empty(h, w, 3), at.empty(h, w)
    depths = at.empty(h, w) if depth else None
    n_kept, n_scratch, _ = _core.draw_bytes(rows.n, room, corners(rect), depth, False, at.number)
    kept, scratch = at.workspace(n_kept), at.workspace(n_scratch)
    overflowed, count = 0, 0
    if check_room is not None:
        n_views = check_room.counts.shape[0]
        if not 0 <= whole("index", index) < n_views:
            raise ValueError(f"index must be from 0 to {n_views - 1}, got {index}")
        overflowed = address("overflowed", check_room.overflowed, (1,), torch.int32, at.device)
        count = check_room.counts[index].data_ptr()
    _core.draw_cuda(
        scene,
        room,
        overflowed,
        count,
        image.data_ptr(),
        alpha.data_ptr(),
        0 if depths is None else depths.data_ptr(),
        span(kept),
        span(scratch),
        at.number,
        at.stream,
    )
    if check_room is not None:
        check_room.note(index, room)
    alive = (keys, background)
    return Drawing(image, alpha, depths, rows, view, rect, room, scene, kept, alive)


def draw_backward(
    drawing: Drawing,
    grad_image: Tensor | None,
    grad_alpha: Tensor | None = None,
    grad_depth: Tensor | None = None,
    *,
    out: RowGradients,
    places: Tensor | None = None,
    absgrad: bool = False,
    statistics: Statistics | None = None,
    check_room: RoomCheck | None = None,
) -> Tensor:
    """Add the gradients of a drawing's rows: :func:`gs_raster.blend_backward` and
    :func:`gs_raster.project_backward` in one call.

    Args:
        drawing: from :func:`draw`.
        grad_image: (h, w, 3) float32; None for 0.
        grad_alpha, grad_depth: (h, w) float32; None for 0.
        out: sums of gradients, added to.
        places: (R,) int32, distinct: row i is added to row ``places[i]`` of ``out``; None: to
            row i. Values are trusted unless ``GS_CHECK_INDEX=1``.
        absgrad: also sum |d loss / d mean| over pixels.
        statistics: added to.
        check_room: nothing is added where a view of the batch has had too little room.

    Returns:
        (R, 12) float32, the gradients of splats, see :func:`gs_raster.blend_backward`.

    Raises:
        TypeError, ValueError, CudaError: as the two stages.

    Asynchrony: enqueued on torch's current stream; does not synchronise. The same inputs give the
        same bits.
    """
    rows, rect = drawing.rows, drawing.rect
    at = place_of("rows", rows.means)
    check_out(out, rows, places, at)
    h, w = rect.height, rect.width
    of_image = address("grad_image", grad_image, (h, w, 3), _REAL, at.device)
    of_alpha = address("grad_alpha", grad_alpha, (h, w), _REAL, at.device)
    of_depth = address("grad_depth", grad_depth, (h, w), _REAL, at.device)
    if statistics is not None and statistics.absgrad and not absgrad:
        raise ValueError("absgrad must be True for statistics of absolute gradients, got False")
    told = NO_STATISTICS
    if statistics is not None:
        told = statistics.native(rows.means.shape[0], at.device)
    of_splats = at.empty(rows.n, WORDS)
    _, _, n_scratch = _core.draw_bytes(
        rows.n, drawing.room, corners(rect), grad_depth is not None, absgrad, at.number
    )
    scratch = at.workspace(n_scratch)
    skip = None if check_room is None else check_room.overflowed
    if skip is not None:
        check("check_room.overflowed", skip, (1,), torch.int32, at.device)
    _core.draw_backward_cuda(
        drawing._scene,
        drawing.room,
        span(drawing._memory),
        of_image,
        of_alpha,
        of_depth,
        absgrad,
        of_splats.data_ptr(),
        out.native(places, add=True, skip=skip),
        told,
        span(scratch),
        at.number,
        at.stream,
    )
    return of_splats


def _splats_in(kept: Tensor, n: int, view: View) -> Splats:
    """The records and radii that begin a drawing's memory, see csrc/draw.cpp."""
    n_bytes = 4 * WORDS * n
    begin = -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
    records = kept[:n_bytes].view(torch.int32).view(n, WORDS)
    radii = kept[begin : begin + 8 * n].view(torch.int32).view(n, 2)
    return Splats(records, view, radii=radii)
