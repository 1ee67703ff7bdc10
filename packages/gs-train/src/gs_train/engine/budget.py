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

from gs_train.engine.presets import Preset
from gs_train.engine.workload import Workload

Tier = Literal["device", "pinned", "pageable"]

GEOMETRY = 11
"""Floats of means, scales, quats and opacities."""

HEADROOM = 1.25
"""Row buffers are taken this much larger than needed, so that they seldom grow."""

RING_BYTES = 256 << 20
"""Page-locked memory for rows on their way, in each direction."""

MOST_CROPS = 16
"""Parts that a view may be cut into before a cap counts as too small."""

_FLOAT = 4
_STAGED_IMAGES = 3
_REORDER = 72  # bytes a row: a slab of 64 bytes, and the order
_MORTON = 40  # codes, two workspaces of the sort, its values and indices
_SLOT = 8  # bytes a row: where torch finds it, in 64 bits

# Floats a row beside its attributes, when it has been projected: activations 4, radii 2, centre 2,
# depth, conic 3, compensation 2, direction 3, colours before and after clamping 6; while its tiles
# are counted, their number and 64 bits of a running sum.
_PROJECTED, _COUNTED = 23, 3
# In the backward pass, when the harmonics have theirs: the above but one of the colours 20, and
# gradients: centre 2, the same retained 2 and absolute 2, conic 3, opacity, colours 3, direction 3.
_RETURNED = 36

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


@dataclass(frozen=True)
class Room:
    """What the working memory of a preset is dimensioned for.

    Attributes:
        rows: of the largest microbatch.
        slots: of rows that are on the device at once, placement ``split``.
    """

    rows: int
    slots: int


def room_wanted(preset: Preset, work: Workload) -> Room:
    """Every view whole, and rows kept as long as the preset would."""
    rows = work.most.largest
    if preset.split_share is not None:
        rows = min(rows, preset.split_share * work.n_rows)
    # Without slots to keep, two buffers take turns.
    slots = work.most.held if preset.retain == "last_use" else 2 * rows
    return Room(math.ceil(rows), math.ceil(max(slots, rows)))


def room_least(preset: Preset, work: Workload) -> Room:
    """Views in as many parts as a plan allows, and no row kept longer than it must be."""
    if preset.placement != "split":
        return room_wanted(preset, work)
    rows = math.ceil(work.most.largest / MOST_CROPS)
    return Room(rows, 2 * rows)


def room_within(preset: Preset, work: Workload, device_bytes: int) -> Room | None:
    """The largest room whose bytes fit into a cap; None where not even the least does.

    Rows of one microbatch come first, then rows that are kept for later ones.
    """
    least, most = room_least(preset, work), room_wanted(preset, work)

    def fits(room: Room) -> bool:
        return need(preset, work, room).device_bytes <= device_bytes

    if fits(most):
        return most
    if not fits(least):
        return None
    rows = _largest(least.rows, most.rows, lambda n: fits(Room(n, 2 * n)))
    slots = _largest(2 * rows, max(2 * rows, most.slots), lambda n: fits(Room(rows, n)))
    return Room(rows, slots)


def need(preset: Preset, work: Workload, room: Room | None = None) -> Need:
    """Bytes by part.

    Args:
        room: of the working memory; :func:`room_wanted` when None.
    """
    room = room or room_wanted(preset, work)
    n, appearance, is_split = work.n_rows, work.appearance, preset.placement == "split"
    width = GEOMETRY + appearance
    image = 3 * work.pixels

    device: dict[str, int] = {}
    pinned: dict[str, int] = {}
    pageable: dict[str, int] = {}
    if is_split:
        device["parameters"] = GEOMETRY * _FLOAT * n
        device["moments"] = 2 * GEOMETRY * _FLOAT * n
        device["gradients"] = GEOMETRY * _FLOAT * _ceil(work.most.union)
        device["row buffers"] = int(2 * appearance * _FLOAT * room.slots * HEADROOM)
        device["plans"] = _plan_bytes(preset, work)
        if preset.retain == "previous":
            returning = max(0.0, work.most.loaded - work.most.union)
            device["returning gradients"] = appearance * _FLOAT * _ceil(returning)
        pinned["parameters"] = appearance * _FLOAT * n
        pinned["rings"] = 2 * RING_BYTES
        pageable["moments"] = 2 * appearance * _FLOAT * n
        pageable["steps of rows"] = 4 * n
    else:
        device["parameters"] = width * _FLOAT * n
        device["gradients"] = width * _FLOAT * n
        if preset.placement == "mirror":
            pinned["parameters"] = width * _FLOAT * n
            pinned["gradients"] = width * _FLOAT * n
            pageable["moments"] = 2 * width * _FLOAT * n
        else:
            device["moments"] = 2 * width * _FLOAT * n
    device["densification"] = work.statistics_bytes * n
    device["culling"] = _culling_bytes(preset, work)
    device["photographs"] = (work.batch_size + _STAGED_IMAGES) * image
    device["rendering"] = _rendering_bytes(work, room)
    if is_split:
        # Re-ordering the rows happens when nothing is rendered; elsewhere it fits into what the
        # gradients leave.
        drawing = device["rendering"] + _SLOT * room.rows
        device["rendering"] = max(drawing, (_MORTON + 16) * n)
        pageable["re-ordering"] = _REORDER * n
    pinned["photographs"] = _STAGED_IMAGES * image
    pageable["photographs"] = work.image_cache
    return Need(device, pinned, pageable)


def largest_n(preset: Preset, work: Workload, fits: Callable[[Workload], bool]) -> int:
    """The largest N for which ``fits`` says yes, when views see the share of it that they do now.

    Args:
        fits: monotonic: more rows never fit better.

    Returns:
        0 where a single row does not fit; at most 2^31 - 2.
    """
    if not fits(work.with_rows(1)):
        return 0
    return _largest(1, 2**31 - 2, lambda n: fits(work.with_rows(n)))


def _rendering_bytes(work: Workload, room: Room) -> int:
    """One microbatch, at the fullest of three moments: sorting intersections, the gradient of the
    image, and the gradient of the colours."""
    rows, width = room.rows, GEOMETRY + work.appearance
    # A microbatch of fewer rows is a crop, which has fewer intersections; its projection covers
    # all of its rows.
    share = rows / work.most.largest if work.most.largest > rows else 1.0
    intersections = math.ceil(work.most.intersections * share)
    # Leaves, and the harmonics once more, joined.
    projected = width + work.appearance + _PROJECTED
    sorting = _FLOAT * rows * (projected + _COUNTED) + _SORTING * intersections
    image = _FLOAT * rows * projected + _SORTED * intersections + (_DRAWN + _LOSS) * work.pixels
    # Leaves, joined harmonics and their gradient.
    colours = _FLOAT * rows * (width + 2 * work.appearance + _RETURNED) + _IMAGE * work.pixels
    return max(sorting, image, colours)


def _culling_bytes(preset: Preset, work: Workload) -> int:
    bits = 4 * _ceil(work.n_rows / 32)
    if preset.placement == "split" and preset.semantics == "dense":
        bits += work.n_rows  # a mask of the rows that no view sees
    if preset.placement != "split":
        return bits + (4 + 4 + 8) * _ceil(work.most.largest)  # one view; ids of torch are int64
    batches = 2 if preset.early_cull else 1
    words = 4 * _ceil(work.batch_size / 32)
    return bits + batches * (4 + words) * _ceil(work.most.union)


def _plan_bytes(preset: Preset, work: Workload) -> int:
    """Lists of gs-order: ids, positions and slots, int32."""
    visible, batches = work.most.visible, 2 if preset.early_cull else 1
    if preset.retain == "last_use":
        return batches * _ceil(16 * visible + 16 * work.most.union)
    return batches * _ceil(12 * visible + 16 * work.most.loaded)


def _largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The largest whole number in [low, high] that ``holds``, where ``low`` does."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _ceil(x: float) -> int:
    return math.ceil(x)
