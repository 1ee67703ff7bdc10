# SPDX-License-Identifier: Apache-2.0
"""What the working memory of a preset is dimensioned for, in rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gs_train.engine import buffers, residents
from gs_train.engine.limits import Limits
from gs_train.options.presets import Preset
from gs_train.sizing.workload import Workload

MOST_CROPS = 16
"""Parts that a view may be cut into before a cap counts as too small."""


@dataclass(frozen=True)
class Room:
    """Numbers of rows that there is memory for.

    Attributes:
        rows: of the largest microbatch.
        slots: on the device at once in a batch that the host updates, placement ``split``.
        residents: on the device with their moments; 0 where the host updates every batch.
    """

    rows: int
    slots: int
    residents: int = 0

    @classmethod
    def of_residents(cls, rows: int, residents: int) -> Room:
        """A batch that sees more rows than these is updated by the host, in the same memory."""
        return cls(rows, int(residents * 3 / (2 * buffers.HEADROOM)), residents)


def room_wanted(preset: Preset, work: Workload) -> Room:
    """Every view whole, and rows kept as long as the preset would."""
    room = room_wanted_by_host(preset, work)
    if not preset.travels:
        return room
    wanted = math.ceil(work.most.two * residents.HEADROOM)
    return Room.of_residents(room.rows, max(1, min(wanted, work.n_rows)))


def room_wanted_by_host(preset: Preset, work: Workload) -> Room:
    """The same where the host updates every batch."""
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
    rows = least_rows(work)
    return Room(rows, 2 * rows)


def residents_least(preset: Preset, work: Workload) -> Room:
    """The same where the rows of one batch stay on the device."""
    kept = min(math.ceil(work.most.union), room_wanted(preset, work).residents)
    return Room.of_residents(least_rows(work), max(1, kept))


def least_rows(work: Workload) -> int:
    """Of the largest view, in as many parts as a plan allows."""
    return math.ceil(work.most.largest / MOST_CROPS)


def room_under(preset: Preset, work: Workload, limits: Limits) -> Room:
    """What a run takes that respects ``limits``."""
    room = room_wanted(preset, work)
    if limits.residents == 0:
        room = room_wanted_by_host(preset, work)
    rows = room.rows if limits.rows is None else min(room.rows, limits.rows)
    if room.residents:
        kept = room.residents if limits.residents is None else limits.residents
        return Room.of_residents(rows, min(kept, work.n_rows))
    return Room(rows, room.slots if limits.slots is None else min(room.slots, limits.slots))
