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
        InputError: parts of `SMALLEST` pixels see too many rows. Names memory that suffices for all
            views of the batch, so for all that were seen so far.
    """
    parts: list[Microbatch] = []
    stuck: list[tuple[int, View]] = []
    for index, view in enumerate(views):
        cores = _cut(view, [Crop(view, view.rect)], count, room, stuck)
        parts += [Microbatch(index, core, len(cores)) for core in cores]
    if stuck:
        raise InputError(_too_small(*max(stuck, key=lambda found: found[0]), room))
    return parts


def _cut(
    view: View,
    crops: list[Crop],
    count: CountRows,
    room: BatchRoom,
    stuck: list[tuple[int, View]],
) -> list[Crop]:
    """Adds to ``stuck`` rows of parts that see too many and are not cut further."""
    # Not whole: only then does a cull look at the part alone.
    asked = [Microbatch(0, crop, 1 if crop.core == view.rect else 2) for crop in crops]
    done: list[Crop] = []
    for crop, n in zip(crops, count(asked), strict=True):
        if n <= room.most_rows:
            done.append(crop)
        elif max(crop.core.width, crop.core.height) <= SMALLEST:
            stuck.append((n, view))
        else:
            halves = [Crop(view, core) for core in crop.core.halves()]
            done += _cut(view, halves, count, room, stuck)
    return done


def _too_small(n_rows: int, view: View, room: BatchRoom) -> str:
    needed = room.bytes_for(n_rows)
    remedy = "more device memory is needed (--device-memory)"
    if needed is None and room.device_for is not None:
        remedy = "more host memory is needed (--host-memory), whatever --device-memory says"
    elif needed is not None and room.device_bytes is not None:
        remedy = (
            f"--device-memory {format_bytes(room.device_bytes)} is too small, "
            f"{-(-needed // 2**20)}MiB suffices for all views seen so far; go on with --resume"
        )
    return (
        f"view {view.name} shows {n_rows:,} Gaussians within {SMALLEST} pixels, and there is room "
        f"for {room.most_rows:,}: {remedy}"
    )
