# SPDX-License-Identifier: Apache-2.0
"""Views that see more rows than the device has room for, in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gs_train.engine.microbatches import Microbatch
from gs_train.errors import InputError
from gs_train.losses.loss import Crop
from gs_train.renderers import View
from gs_train.sizes import format_bytes
from gs_train.tide.room import BatchRoom

SMALLEST = 16
"""Pixels of the longer side of a part that is not cut further."""

CountRows = Callable[[Sequence[Microbatch]], Sequence[int]]
"""Gives the rows that each microbatch sees."""


def cut_to_room(views: Sequence[View], count: CountRows, room: BatchRoom) -> list[Microbatch]:
    """The views of a batch, halved across their longer side until each part has room.

    Args:
        count: asked about few microbatches at a time, each of them once.

    Returns:
        The parts of each view one behind the other, in the order of the views.

    Raises:
        InputError: a part of `SMALLEST` pixels sees too many rows.
    """
    parts: list[Microbatch] = []
    for index, view in enumerate(views):
        cores = _cut(view, [Crop(view, view.rect)], count, room)
        parts += [Microbatch(index, core, len(cores)) for core in cores]
    return parts


def _cut(view: View, crops: list[Crop], count: CountRows, room: BatchRoom) -> list[Crop]:
    # Not whole: only then does a cull look at the part alone.
    asked = [Microbatch(0, crop, 1 if crop.core == view.rect else 2) for crop in crops]
    counts = count(asked)
    too_many = [n > room.most_rows for n in counts]
    stuck = [
        n
        for crop, n, is_wide in zip(crops, counts, too_many, strict=True)
        if is_wide and max(crop.core.width, crop.core.height) <= SMALLEST
    ]
    if stuck:
        raise InputError(_too_small(view, max(stuck), room))
    done: list[Crop] = []
    for crop, is_wide in zip(crops, too_many, strict=True):
        halves = [Crop(view, core) for core in crop.core.halves()] if is_wide else []
        done += _cut(view, halves, count, room) if is_wide else [crop]
    return done


def _too_small(view: View, n_rows: int, room: BatchRoom) -> str:
    needed = room.bytes_for(n_rows)
    remedy = "more device memory is needed (--device-memory)"
    if needed is not None and room.device_bytes is not None:
        remedy = (
            f"--device-memory {format_bytes(room.device_bytes)} is too small, the smallest that "
            f"works for this view is {-(-needed // 2**20)}MiB"
        )
    return (
        f"view {view.name} shows {n_rows:,} Gaussians within {SMALLEST} pixels, and there is room "
        f"for {room.most_rows:,}: {remedy}"
    )
