# SPDX-License-Identifier: Apache-2.0
"""Which splats touch which tile, front to back, on a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.addresses import span
from gs_raster.cuda.place import Place, place_of
from gs_raster.cuda.room_check import RoomCheck
from gs_raster.cuda.splats import Splats
from gs_raster.cuda.workspace import Workspace
from gs_raster.numbers import whole
from gs_raster.types import MAX_INSTANCES, Rect, check_instances

TILE = 16
MAX_TILES = 2**31 - 2


@dataclass(frozen=True, eq=False)
class TileLists:
    """Instances of a rectangle by tile, front to back within a tile. All tensors are int32.

    An instance is a pair of a splat and a tile that the splat touches. Tiles are those of the whole
    view's grid that the rectangle touches, row by row.

    Attributes:
        rect: the rectangle.
        begins: (n_tiles + 1,) where each tile's instances begin.
        splats: (I,) the splat of each instance; with a room (room,), of which the first are.
        slots: likewise, the place of each instance when instances are grouped by splat.
        firsts: (R,) the first slot of each splat.
        counts: (R,) slots of each splat.
    """

    rect: Rect
    begins: Tensor
    splats: Tensor
    slots: Tensor
    firsts: Tensor
    counts: Tensor

    @property
    def n_instances(self) -> int:
        """I, or the room that was given."""
        return len(self.splats)

    def native(self) -> _core.TileListsAt:
        """For the native functions."""
        return _core.TileListsAt(
            corners(self.rect),
            self.n_instances,
            self.begins.data_ptr(),
            self.splats.data_ptr(),
            self.slots.data_ptr(),
            self.firsts.data_ptr(),
            self.counts.data_ptr(),
        )


def sort(
    splats: Splats,
    rect: Rect | None = None,
    *,
    room: int | None = None,
    check_room: RoomCheck | None = None,
    index: int = 0,
    workspace: Workspace | None = None,
) -> TileLists:
    """List the splats of each tile of a rectangle, front to back.

    Args:
        splats: from :func:`gs_raster.project`.
        rect: pixels of the view, need not be aligned to tiles, may be empty; all pixels when None.
        room: most instances that can be listed, so that nothing is waited for. Where there are
            more, all lists are empty: see ``check_room``. None: all of them, which are counted
            first.
        check_room: with a room: told how many instances there are.
        index: of the view in its batch, for ``check_room``.
        workspace: with a room: what is sorted lies there meanwhile, and graphs of sorting are kept
            there; None: memory of its own.

    Raises:
        ValueError: the rectangle is not inside the view, the splats are not on a CUDA device, or
            ``room`` or ``index`` is out of range.
        TooManyInstancesError: the splats touch 2^31 tiles or more, and no room was given.
        CudaError: this build has no CUDA, or a launch failed.

    Asynchrony: enqueued on torch's current stream. Without a room it waits for that stream once, to
        learn the number of instances, with the GIL released. The same inputs give the same bits.
    Cost: 8 bytes an instance and 8 bytes a splat while the lists live, and workspace meanwhile, see
        :func:`gs_raster.workspace_bytes`.
    """
    rect = splats.view.checked_rect(rect)
    at = place_of("splats", splats.records)
    n, n_tiles = splats.n, tiles_of(rect)
    if room is not None and n and n_tiles:
        return _sort_into(room, splats, rect, n_tiles, check_room, index, workspace, at)
    counted = at.empty(2, n, dtype=torch.int32)
    firsts, counts = counted.unbind()
    if not n or not n_tiles:
        none = at.empty(0, dtype=torch.int32)
        begins = torch.zeros(n_tiles + 1, dtype=torch.int32, device=at.device)
        return TileLists(rect, begins, none, none, firsts.zero_(), counts.zero_())
    records, order, place = splats.records.data_ptr(), splats.order.data_ptr(), corners(rect)
    ends, total = at.empty(n, dtype=torch.int32), at.empty(1, dtype=torch.int64)
    scratch = at.workspace(_core.count_workspace_bytes(n, at.number))
    # Page-locked, so that the stream alone is waited for.
    host_total = torch.empty(1, dtype=torch.int64, device="cpu", pin_memory=True)
    n_instances = _core.count_instances_cuda(
        records,
        order,
        n,
        place,
        ends.data_ptr(),
        total.data_ptr(),
        host_total.data_ptr(),
        span(scratch),
        at.number,
        at.stream,
    )
    check_instances(n_instances)
    del scratch  # before the next is taken
    begins = at.empty(n_tiles + 1, dtype=torch.int32)
    listed, slots = at.empty(2, n_instances, dtype=torch.int32).unbind()
    lists = TileLists(rect, begins, listed, slots, firsts, counts)
    scratch = at.workspace(_core.list_workspace_bytes(n_instances, place, at.number))
    _core.list_instances_cuda(
        records,
        order,
        n,
        lists.native(),
        ends.data_ptr(),
        total.data_ptr(),
        span(scratch),
        at.number,
        at.stream,
    )
    return lists


def _sort_into(
    room: int,
    splats: Splats,
    rect: Rect,
    n_tiles: int,
    check_room: RoomCheck | None,
    index: int,
    workspace: Workspace | None,
    at: Place,
) -> TileLists:
    """Lists with this room; arguments are those of :func:`sort`."""
    check_room_of(room)
    n, place = splats.n, corners(rect)
    overflowed, count, event = 0, 0, 0
    if check_room is not None:
        overflowed, count, event = check_room.places_of(index, at.device)
    begins = at.empty(n_tiles + 1, dtype=torch.int32)
    listed, slots = at.empty(2, room, dtype=torch.int32).unbind()
    firsts, counts = at.empty(2, n, dtype=torch.int32).unbind()
    lists = TileLists(rect, begins, listed, slots, firsts, counts)
    n_bytes = _core.sort_bytes(n, room, place, at.number)
    own, graphs = None, None
    if workspace is None:
        own = at.workspace(n_bytes)
        scratch = span(own)
    else:
        scratch, graphs = (workspace.take(n_bytes, at).data_ptr(), n_bytes), workspace.graphs
    _core.sort_cuda(
        splats.records.data_ptr(),
        0 if splats.keys is None else splats.keys.data_ptr(),
        n,
        lists.native(),
        overflowed,
        count,
        scratch,
        graphs,
        event,
        at.number,
        at.stream,
    )
    if check_room is not None:
        check_room.note(index, room)
    return lists


def check_room_of(room: int) -> None:
    """Raise ValueError unless ``room`` is a number of instances that lists may have."""
    if not 0 <= whole("room", room) <= MAX_INSTANCES:
        raise ValueError(f"room must be from 0 to {MAX_INSTANCES}, got {room}")


def corners(rect: Rect) -> tuple[int, int, int, int]:
    """x0, y0, x1, y1."""
    return rect.x0, rect.y0, rect.x1, rect.y1


def tiles_of(rect: Rect) -> int:
    """Tiles of the view's grid that a rectangle touches; an empty one touches none.

    Raises:
        ValueError: their number has more than 31 bits.
    """
    if rect.x0 >= rect.x1 or rect.y0 >= rect.y1:
        return 0
    columns = -(-rect.x1 // TILE) - rect.x0 // TILE
    rows = -(-rect.y1 // TILE) - rect.y0 // TILE
    if columns * rows > MAX_TILES:
        raise ValueError(f"rect must touch at most {MAX_TILES} tiles, got {columns * rows}")
    return columns * rows
