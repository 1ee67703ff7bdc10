# SPDX-License-Identifier: Apache-2.0
"""Splats that were projected elsewhere to pixels, and gradients back, in one call each."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.addresses import address, check
from gs_raster.cuda.drawing import place_in
from gs_raster.cuda.drawing_memory import Memory, take
from gs_raster.cuda.place import place_of
from gs_raster.cuda.room_check import RoomCheck
from gs_raster.cuda.sorting import check_room_of, tiles_of
from gs_raster.cuda.splats import WORDS, Splats
from gs_raster.cuda.workspace import Parts, Workspace
from gs_raster.types import Rect

_REAL = torch.float32


@dataclass(frozen=True, eq=False)
class SplatDrawing:
    """Splats that have been drawn, with what their gradient reads.

    Attributes:
        image: (h, w, 3) float32.
        depth: (h, w) float32 sum of weight times depth; None if not asked for.
        splats, rect: what was drawn.
        room: instances that there was room for.
        for_gradient: (h, w, 3) float32 in the workspace, which the gradient of the image may be
            written to; None without a workspace that holds it.

    In a workspace the image lasts until :func:`draw_splats_backward`, which writes over it, and all
    else until the next view is drawn there.
    """

    image: Tensor
    depth: Tensor | None
    splats: Splats
    rect: Rect
    room: int
    for_gradient: Tensor | None
    _scene: _core.SplatSceneAt
    _memory: Memory
    _background: Tensor | None  # which the gradient reads

    @functools.cached_property
    def alpha(self) -> Tensor:
        """(h, w) float32. Computed when first asked for, on torch's stream of that moment."""
        _, (pixels, _) = self._memory.spans
        return 1.0 - self._memory.part((self.rect.height, self.rect.width), pixels)

    @property
    def begins(self) -> Tensor:
        """(n_tiles + 1,) int32 where each tile's instances begin, see
        :class:`gs_raster.TileLists`; in the drawing's memory."""
        (begin, _), _ = self._memory.spans
        return self._memory.part((tiles_of(self.rect) + 1,), begin).view(torch.int32)


def draw_splats(
    splats: Splats,
    rect: Rect | None = None,
    *,
    room: int,
    background: Tensor | None = None,
    depth: bool = False,
    check_room: RoomCheck | None = None,
    index: int = 0,
    workspace: Workspace | None = None,
    absgrad: bool = False,
) -> SplatDrawing:
    """Draw a rectangle of a view whose splats are there: :func:`gs_raster.sort` and
    :func:`gs_raster.blend` in one call that waits for nothing.

    Args:
        splats: R of them, unchanged until the gradient has been taken; R may be 0.
        rect: pixels of the view; all of them when None.
        room: most instances (pairs of a splat and a tile) that can be listed. Where there are more,
            the image is the background and its gradient 0: see ``check_room``.
        background: (3,) float32 on the device; None for black.
        depth: also sum depths.
        check_room: told how many instances there are.
        index: of the view in its batch, for ``check_room``.
        workspace: in which the drawing lies until the next one is drawn there; None: memory of its
            own.
        absgrad: whether the workspace has room for a gradient with ``absgrad``.

    Raises:
        TypeError: a dtype differs.
        ValueError: the splats are not on a CUDA device, a shape differs, or an argument is out of
            range.
        CudaError: this build has no CUDA, or a launch failed.

    Asynchrony: enqueued on torch's current stream; does not synchronise. The same inputs give the
        same bits, those of the two stages.
    """
    at = place_of("splats", splats.records)
    rect = splats.view.checked_rect(rect)
    h, w, place = place_in(rect)
    check_room_of(room)
    scene = _core.SplatSceneAt(
        splats.records.data_ptr(),
        0 if splats.keys is None else splats.keys.data_ptr(),
        splats.n,
        place,
        address("background", background, (3,), _REAL, at.device),
    )
    overflowed, count, drawn = 0, 0, 0
    if check_room is not None:
        overflowed, count, drawn = check_room.places_of(index, at.device)
    holds = workspace is not None and workspace.holds_gradient
    parts = _parts_of(splats.n, room, place, depth, absgrad, holds, at.number)
    depths, taken = at.empty(h, w) if depth else None, take(parts, workspace, at, h, w)
    _core.draw_splats_cuda(
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
    return SplatDrawing(
        taken.image,
        depths,
        splats,
        rect,
        room,
        taken.for_gradient,
        scene,
        taken.memory,
        background,
    )


def draw_splats_backward(
    drawing: SplatDrawing,
    grad_image: Tensor | None,
    grad_alpha: Tensor | None = None,
    grad_depth: Tensor | None = None,
    *,
    absgrad: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """The gradients of a drawing's splats: :func:`gs_raster.blend_backward` in one call.

    Args:
        drawing: from :func:`draw_splats`. Of one in a workspace the image is gone afterwards.
        grad_image: (h, w, 3) float32; None for 0.
        grad_alpha, grad_depth: (h, w) float32; None for 0.
        absgrad: also sum |d loss / d mean| over pixels.
        out: (R, 12) float32, written; allocated when None.

    Returns:
        (R, 12) float32, see :func:`gs_raster.blend_backward`; 0 where the drawing had too little
        room.

    Raises:
        TypeError, ValueError, CudaError: as :func:`gs_raster.blend_backward`; ValueError also for a
            gradient that lies where the image does.
        RuntimeError: another view has been drawn in the drawing's workspace.

    Asynchrony: enqueued on torch's current stream; does not synchronise. The same inputs give the
        same bits.
    """
    memory, n = drawing._memory, drawing.splats.n
    memory.check()
    at = place_of("splats", drawing.splats.records)
    h, w, _ = drawing.image.shape
    of_image = address("grad_image", grad_image, (h, w, 3), _REAL, at.device)
    of_alpha = address("grad_alpha", grad_alpha, (h, w), _REAL, at.device)
    of_depth = address("grad_depth", grad_depth, (h, w), _REAL, at.device)
    memory.check_gradient(of_image)
    if out is None:
        out = at.empty(n, WORDS)
    else:
        check("out", out, (n, WORDS), _REAL, at.device, alignment=16)
    if n == 0 or not (of_image or of_alpha or of_depth):
        return out.zero_()
    scratch, own = memory.slots(drawing.room, grad_depth is not None, absgrad, at)
    _core.draw_splats_backward_cuda(
        drawing._scene,
        drawing.room,
        memory.spans,
        of_image,
        of_alpha,
        of_depth,
        absgrad,
        out.data_ptr(),
        scratch,
        at.number,
        at.stream,
    )
    del own  # behind what is enqueued
    return out


@functools.lru_cache(1024)
def _parts_of(
    n: int,
    room: int,
    place: tuple[int, int, int, int],
    depth: bool,
    absgrad: bool,
    holds_gradient: bool,
    device: int,
) -> Parts:
    """Of a drawing of splats; arguments are those of `gs_raster.cuda.drawing.parts_of`."""
    lists, pixels, sort = _core.draw_splats_bytes(n, room, place, device)
    slots = _core.draw_backward_bytes(room, depth, absgrad)
    return Parts.of_rectangle(
        place, sort=sort, pixels=pixels, slots=slots, lists=lists, holds_gradient=holds_gradient
    )
