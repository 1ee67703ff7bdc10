# SPDX-License-Identifier: Apache-2.0
"""A view from tables to pixels, and gradients back to tables, in one call each."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.addresses import address
from gs_raster.cuda.drawing_memory import Memory, take
from gs_raster.cuda.indices import check_indices
from gs_raster.cuda.place import place_of
from gs_raster.cuda.projection import check_out, projection_of
from gs_raster.cuda.room_check import RoomCheck
from gs_raster.cuda.rows import RowGradients, Rows
from gs_raster.cuda.sorting import check_room_of, corners, tiles_of
from gs_raster.cuda.splats import WORDS, Splats
from gs_raster.cuda.statistics import NO_STATISTICS, Statistics
from gs_raster.cuda.views import View
from gs_raster.cuda.workspace import Parts, Workspace, rounded
from gs_raster.types import Options, Rect

_REAL = torch.float32


@dataclass(frozen=True, eq=False)
class Drawing:
    """A view that has been drawn, with what its gradient reads.

    Attributes:
        image: (h, w, 3) float32.
        alpha: (h, w) float32.
        depth: (h, w) float32 sum of weight times depth; None if not asked for.
        rows, view, rect: what was drawn.
        room: instances that there was room for.
        for_gradient: (h, w, 3) float32 in the workspace, which the gradient of the image may be
            written to; None without a workspace that holds it.

    In a workspace the image lasts until :func:`draw_backward`, which writes over it.
    """

    image: Tensor
    depth: Tensor | None
    rows: Rows
    view: View
    rect: Rect
    room: int
    for_gradient: Tensor | None
    _scene: _core.SceneAt
    _memory: Memory
    _has_radii: bool
    _alive: tuple[Any, ...]

    @functools.cached_property
    def alpha(self) -> Tensor:
        """Computed when first asked for, on torch's stream of that moment."""
        _, (pixels, _) = self._memory.spans
        return 1.0 - self._memory.part((self.rect.height, self.rect.width), pixels)

    @property
    def splats(self) -> Splats:
        """The rows as splats of the view, with their radii where these were asked for; in the
        drawing's memory."""
        n, ((begin, _), _) = self.rows.n, self._memory.spans
        records = self._memory.part((n, WORDS), begin).view(torch.int32)
        radii = None
        if self._has_radii:  # behind the records, see csrc/draw.cpp
            radii = self._memory.part((n, 2), begin + rounded(4 * WORDS * n)).view(torch.int32)
        return Splats(records, self.view, radii=radii)


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
    workspace: Workspace | None = None,
    absgrad: bool = False,
    radii: bool = True,
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
        workspace: in which the drawing lies until the next view is drawn there, and its image until
            the gradient is taken; None: memory of its own.
        absgrad: whether the workspace has room for a gradient with ``absgrad``, which else takes
            memory besides.
        radii: also keep the half extents, which statistics of :func:`draw_backward` read.

    Raises:
        TypeError: a dtype differs.
        ValueError: rows or view are not on one CUDA device, a shape differs, or an argument is out
            of range.
        CudaError: this build has no CUDA, or a launch failed.

    Asynchrony: enqueued on torch's current stream; does not synchronise. The same inputs give the
        same bits, those of the three stages.
    Cost: a workspace takes :func:`gs_raster.drawing_bytes`.
    """
    at = place_of("rows", rows.means)
    rect = view.checked_rect(rect)
    h, w, place = place_in(rect)
    check_room_of(room)
    if keys is not None:
        check_indices("keys", keys, None, distinct=True)
    scene = _scene_at(
        rows.native(),
        address("keys", keys, (rows.means.shape[0],), torch.int32, at.device),
        projection_of(rows, view, sh_degree, options, at),
        place,
        0 if background is None else address("background", background, (3,), _REAL, at.device),
        radii,
    )
    overflowed, count, drawn = 0, 0, 0
    if check_room is not None:
        overflowed, count, drawn = check_room.places_of(index, at.device)
    holds = workspace is not None and workspace.holds_gradient
    parts = parts_of(rows.n, room, place, depth, absgrad, radii, holds, at.number)
    depths, taken = at.empty(h, w) if depth else None, take(parts, workspace, at, h, w)
    _core.draw_cuda(
        scene,
        room,
        overflowed,
        count,
        taken.image.data_ptr(),
        0 if depths is None else depths.data_ptr(),
        taken.memory.spans,
        taken.sort,
        taken.graphs,
        drawn,
        at.number,
        at.stream,
    )
    if check_room is not None:
        check_room.note(index, room)
    drawing = object.__new__(Drawing)  # sooner than a frozen class makes it
    drawing.__dict__.update(
        image=taken.image,
        depth=depths,
        rows=rows,
        view=view,
        rect=rect,
        room=room,
        for_gradient=taken.for_gradient,
        _scene=scene,
        _memory=taken.memory,
        _has_radii=radii,
        _alive=(keys, background),
    )
    return drawing


@overload
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
    gives_splats: Literal[True] = True,
) -> Tensor: ...


@overload
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
    gives_splats: bool,
) -> Tensor | None: ...


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
    gives_splats: bool = True,
) -> Tensor | None:
    """Add the gradients of a drawing's rows: :func:`gs_raster.blend_backward` and
    :func:`gs_raster.project_backward` in one call.

    Args:
        drawing: from :func:`draw`. Of a drawing in a workspace the image is gone afterwards.
        grad_image: (h, w, 3) float32; None for 0.
        grad_alpha, grad_depth: (h, w) float32; None for 0.
        out: sums of gradients, added to.
        places: (R,) int32, distinct: row i is added to row ``places[i]`` of ``out``; None: to
            row i. Values are trusted unless ``GS_CHECK_INDEX=1``.
        absgrad: also sum |d loss / d mean| over pixels.
        statistics: added to.
        check_room: nothing is added where a view of the batch has had too little room.
        gives_splats: return the gradients of splats.

    Returns:
        (R, 12) float32, the gradients of splats, see :func:`gs_raster.blend_backward`; None where
        they are not asked for.

    Raises:
        TypeError, ValueError, CudaError: as the two stages; ValueError also for statistics of a
            drawing without radii, and for a gradient that lies where the image does.
        RuntimeError: another view has been drawn in the drawing's workspace.

    Asynchrony: enqueued on torch's current stream; does not synchronise. The same inputs give the
        same bits.
    """
    rows, memory = drawing.rows, drawing._memory
    memory.check()
    at = place_of("rows", rows.means)
    check_out(out, rows, places, at)
    h, w, _ = drawing.image.shape
    of_image = address("grad_image", grad_image, (h, w, 3), _REAL, at.device)
    of_alpha = of_depth = 0
    if grad_alpha is not None:
        of_alpha = address("grad_alpha", grad_alpha, (h, w), _REAL, at.device)
    if grad_depth is not None:
        of_depth = address("grad_depth", grad_depth, (h, w), _REAL, at.device)
    if statistics is not None and statistics.absgrad and not absgrad:
        raise ValueError("absgrad must be True for statistics of absolute gradients, got False")
    memory.check_gradient(of_image)
    told = NO_STATISTICS
    if statistics is not None:
        if not drawing._has_radii:
            raise ValueError("drawing must have radii for statistics, got radii=False")
        told = statistics.native(rows.means.shape[0], at.device)
    skip = 0
    if check_room is not None:
        skip = check_room.flag("check_room.overflowed", at.device)
    of_splats = at.empty(rows.n, WORDS) if gives_splats else None
    scratch, own = memory.slots(drawing.room, grad_depth is not None, absgrad, at)
    _core.draw_backward_cuda(
        drawing._scene,
        drawing.room,
        memory.spans,
        of_image,
        of_alpha,
        of_depth,
        absgrad,
        0 if of_splats is None else of_splats.data_ptr(),
        out.native(places, add=True, skip=skip),
        told,
        scratch,
        at.number,
        at.stream,
    )
    del own  # behind what is enqueued
    return of_splats


@functools.lru_cache(1024)
def place_in(rect: Rect) -> tuple[int, int, tuple[int, int, int, int]]:
    """Height, width and corners of a rectangle that does not touch too many tiles."""
    tiles_of(rect)  # raises where there are too many
    return rect.height, rect.width, corners(rect)


@functools.lru_cache(1024)
def _scene_at(
    rows: _core.RowsAt,
    keys: int,
    projection: _core.ProjectionAt,
    place: tuple[int, int, int, int],
    background: int,
    has_radii: bool,
) -> _core.SceneAt:
    return _core.SceneAt(rows, keys, projection, place, background, has_radii)


@functools.lru_cache(1024)
def parts_of(
    n_rows: int,
    room: int,
    place: tuple[int, int, int, int],
    depth: bool,
    absgrad: bool,
    radii: bool,
    holds_gradient: bool,
    device: int,
) -> Parts:
    """Of a drawing of a rectangle with these corners; other arguments are those of :func:`draw` and
    :class:`Workspace`."""
    lists, pixels, sort = _core.draw_bytes(n_rows, room, place, radii, device)
    slots = _core.draw_backward_bytes(room, depth, absgrad)
    return Parts.of_rectangle(
        place, sort=sort, pixels=pixels, slots=slots, lists=lists, holds_gradient=holds_gradient
    )
