# SPDX-License-Identifier: Apache-2.0
"""Bytes that a preset needs on the device, page-locked and in other host memory: counted before.

Everything that grows with N is exact: it is the size of tensors that exist. What rendering one view
needs follows from the tensors that gsplat's autograd and the fused loss keep, at the fullest of
three moments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gs_train.engine import buffers
from gs_train.options.presets import Preset
from gs_train.published import streaming, untouched
from gs_train.rows import morton
from gs_train.rows.attributes import GEOMETRY_WIDTH
from gs_train.sizing.room import Room, room_wanted
from gs_train.sizing.workload import Workload

Tier = Literal["device", "pinned", "pageable"]

_FLOAT = 4
_KEY = 4
_MARK = 1
_STAGED_IMAGES = 3
_REORDER = 72  # bytes a row: a slab of 64 bytes, and the order
_SORTING_ROWS = 8 + 2 + 1  # bytes a row: the order, stretches of the curve, one of them
_MOVING = 8 + 1  # the order and its check, beside the widest table once more
_SLOT = 8  # bytes a row: where torch finds it, in 64 bits
_PLACE = 12  # where it is in the union, its id and its slot
_OF_ROW, _OF_SLOT = 8, 8  # bytes: slot and last step of a row; row and last batch of a slot
_CHOSEN = 32  # bytes a slot: the sort that finds those to give away

# With Triton, which torch brings for CUDA on Linux; without, harmonics are joined and take more.
# Floats a row beside its attributes, when it has been projected: extents 3, opacity, colours before
# and after clamping 6, radii 2, centre 2, depth, conic 3, compensation 2; while its tiles are
# counted, their number and 64 bits of a running sum.
_PROJECTED, _COUNTED = 20, 3
# In the backward pass, when the attributes have their gradients: the above, and the gradients that
# these are made from, position 3, extents 3, opacity, colours 3; that of the centre retained 2 and
# absolute 2.
_RETURNED = 34

_SORTING, _SORTED = 24, 4  # bytes an intersection: key and id, both twice; the id in its place
_IMAGE, _DRAWN = 16, 20  # bytes a pixel: colours and alpha; with the last id
_LOSS = 48  # bytes a pixel: three maps a channel of the SSIM, the gradient


@dataclass(frozen=True)
class Need:
    """Bytes by part in each tier, in the order in which they are taken."""

    device: dict[str, int]
    pinned: dict[str, int]
    pageable: dict[str, int]

    @property
    def device_bytes(self) -> int:
        return sum(self.device.values())

    @property
    def pinned_bytes(self) -> int:
        return sum(self.pinned.values())

    @property
    def host_bytes(self) -> int:
        """Page-locked and pageable."""
        return self.pinned_bytes + sum(self.pageable.values())


def need(preset: Preset, work: Workload, room: Room | None = None) -> Need:
    """Bytes by part.

    Args:
        room: of the working memory; :func:`room_wanted` when None.
    """
    room = room or room_wanted(preset, work)
    n, image = work.n_rows, 3 * work.pixels
    is_split = preset.placement == "split"

    of = _PARTS[preset.placement](preset, work, room)
    device, pinned, pageable = of.device, of.pinned, of.pageable
    device["keys"] = _KEY * n
    device["densification"] = work.statistics_bytes * n
    device["culling"] = _culling_bytes(preset, work)
    device["photographs"] = (work.batch_size + _STAGED_IMAGES) * image
    device["rendering"] = _rendering_bytes(preset, work, room)
    if preset.placement != "mirror":
        by_slot = preset.placement == "device" or room.residents
        device["rendering"] += (_PLACE if by_slot else _SLOT) * room.rows
        # Nothing is rendered while rows are re-ordered, and none of them is in a batch's memory.
        sorting = _SORTING_ROWS * n + morton.SORT_BYTES * min(n, morton.PIECE)
        moving = _MOVING + (_FLOAT * work.appearance if preset.placement == "device" else 16)
        idle = ("rendering", "gradients", "residents", "lists of residents", "row buffers")
        unused = sum(device.get(part, 0) for part in idle)
        device["re-ordering"] = max(0, max(sorting, moving * n) - unused)
    if is_split:
        pageable["re-ordering"] = _REORDER * n
    pinned["photographs"] = _STAGED_IMAGES * image
    pageable["photographs"] = work.image_cache
    return of


def largest_n(preset: Preset, work: Workload, fits: Callable[[Workload], bool]) -> int:
    """The largest N for which ``fits`` says yes, when views see the share of it that they do now.

    Args:
        fits: monotonic: more rows never fit better.

    Returns:
        0 where a single row does not fit; at most 2^31 - 2.
    """
    if not fits(work.with_rows(1)):
        return 0
    return largest(1, 2**31 - 2, lambda n: fits(work.with_rows(n)))


def largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The largest whole number in [low, high] that ``holds``, where ``low`` does."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _mirror(preset: Preset, work: Workload, room: Room) -> Need:
    """All rows with their gradients on the device, and once more with the moments on the host."""
    of = Need({}, {}, {})
    one = (GEOMETRY_WIDTH + work.appearance) * _FLOAT * work.n_rows
    of.device["parameters"] = of.device["gradients"] = one
    of.pinned["parameters"] = of.pinned["gradients"] = one
    of.pageable["moments"] = 2 * one
    return of


def _device(preset: Preset, work: Workload, room: Room) -> Need:
    """All rows on the device, with gradients of those that a batch sees."""
    of = Need({}, {}, {})
    geometry, appearance = GEOMETRY_WIDTH * _FLOAT, work.appearance * _FLOAT
    union = _ceil(work.most.union)
    of.device["parameters"] = (geometry + appearance) * work.n_rows
    of.device["moments"] = 2 * of.device["parameters"]
    of.device["steps of rows"] = 4 * work.n_rows
    of.device["gradients"] = geometry * union + appearance * int(union * buffers.HEADROOM)
    of.device["marks"] = _MARK * union
    return of


def _split(preset: Preset, work: Workload, room: Room) -> Need:
    """Geometry on the device, appearance on the host and, for a while, on the device."""
    of = Need({}, {}, {})
    geometry, appearance = GEOMETRY_WIDTH * _FLOAT, work.appearance * _FLOAT
    of.device["parameters"] = geometry * work.n_rows
    of.device["moments"] = 2 * geometry * work.n_rows
    of.device["gradients"] = geometry * _ceil(work.most.union)
    of.pinned["parameters"] = appearance * work.n_rows
    moments, steps = 2 * appearance * work.n_rows, 4 * work.n_rows
    if room.residents:
        kept = min(room.residents, work.n_rows)
        union = min(_ceil(work.most.union), kept)
        of.device["gradients"] += appearance * int(union * buffers.HEADROOM)
        of.device["residents"] = 3 * appearance * kept
        lists = _OF_ROW * work.n_rows + (_OF_SLOT + _CHOSEN) * kept
        of.device["lists of residents"] = lists + (4 + _MARK) * union
        of.pinned.update({"moments": moments, "steps of rows": steps})
        return of
    of.device["row buffers"] = int(2 * appearance * room.slots * buffers.HEADROOM)
    of.device["plans"] = _plan_bytes(preset, work)
    if preset.retain == "previous":
        returning = max(0.0, work.most.loaded - work.most.union)
        of.device["returning gradients"] = appearance * _ceil(returning)
    # Rows that sleep come through one of their own.
    of.pinned["rings"] = (1 + (preset.semantics == "deferred")) * streaming.RING_BYTES
    if preset.semantics == "dense":
        of.pinned["lists of untouched rows"] = 2 * 4 * work.n_rows
    of.pageable.update({"moments": moments, "steps of rows": steps})
    return of


_PARTS = {"device": _device, "mirror": _mirror, "split": _split}


def _rendering_bytes(preset: Preset, work: Workload, room: Room) -> int:
    """One microbatch, at the fullest of three moments: sorting intersections, the gradient of the
    image, and the gradients of the rows."""
    rows, width = room.rows, GEOMETRY_WIDTH + work.appearance
    # A microbatch of fewer rows is a crop, which has fewer intersections; its projection covers
    # all of its rows. One of more rows is a view that nobody has looked at.
    share = rows / work.most.largest if work.most.largest else 1.0
    intersections = math.ceil(work.most.intersections * share)
    projected = width + _PROJECTED
    sorting = _FLOAT * rows * (projected + _COUNTED) + _SORTING * intersections
    image = _FLOAT * rows * projected + _SORTED * intersections + (_DRAWN + _LOSS) * work.pixels
    gradients = _FLOAT * rows * (2 * width + _RETURNED) + _IMAGE * work.pixels
    return max(sorting, image, gradients)


def _culling_bytes(preset: Preset, work: Workload) -> int:
    bits = 4 * _ceil(work.n_rows / 32)
    if preset.placement == "split" and preset.semantics == "dense":
        # A mask of the rows that no view sees; ids of others in 64 bits, or some of these in both.
        bits += work.n_rows + max(
            12 * untouched.listed_at_once(work.n_rows), 8 * _ceil(work.most.union)
        )
    if preset.placement == "mirror":
        return bits + (4 + 4 + 8) * _ceil(work.most.largest)  # one view; ids of torch are int64
    batches = 1 + preset.early_cull + (preset.early_cull and preset.residents)
    words = 4 * _ceil(work.batch_size / 32)
    return bits + batches * (4 + words) * _ceil(work.most.union)


def _plan_bytes(preset: Preset, work: Workload) -> int:
    """Lists of gs-order, ids, positions and slots, and where sums of loaded rows begin; int32."""
    visible = work.most.visible
    if preset.retain == "last_use":
        return _ceil(16 * visible + 20 * work.most.union)
    return _ceil(12 * visible + 20 * work.most.loaded)


def _ceil(x: float) -> int:
    return math.ceil(x)
