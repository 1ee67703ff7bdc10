# SPDX-License-Identifier: Apache-2.0
"""The room that a preset gets where memory is short, and where there is more than it wants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from gs_train.engine.limits import Limits
from gs_train.options.presets import Preset
from gs_train.sizing.budget import Need, largest, need
from gs_train.sizing.caps import Caps
from gs_train.sizing.room import Room, residents_least, room_least, room_wanted, room_wanted_by_host
from gs_train.sizing.workload import Workload

_FILLED = 0.9  # of a device's cap, by residents that nobody asked for: counting is not exact

_SPARE = 1.03

_Fits = Callable[[Room], bool]


def fit_into(
    preset: Preset, work: Workload, caps: Caps, *, grows_to: int | None = None
) -> Room | None:
    """The room that a preset gets within the caps; None where it does not fit.

    Residents come first, at least those of one batch, for which views are cut if they must be.
    Where not even these fit the host updates all rows; then rows of one microbatch come first, and
    rows that are kept for later ones follow. Where the options give the device's memory and all
    that is wanted fits, residents take what is left of it, room for rows to come included.

    Args:
        grows_to: rows that densification may reach; None for no more than there are.
    """

    def fits(room: Room) -> bool:
        return caps.hold(need(preset, work, room))

    if preset.travels:
        room = _with_residents(preset, work, fits)
        if room is not None and caps.is_given and room == room_wanted(preset, work):
            return _filled(preset, work, caps, room, max(work.n_rows, grows_to or 0))
        if room is not None:
            return room
    return _by_host(preset, work, fits)


def limits_within(
    preset: Preset, work: Workload, caps: Caps, room: Room, *, grows_to: int | None = None
) -> Limits:
    """What a run with this room has to respect.

    Views and batches that see more than those that were looked at, and what they see when there are
    more rows, may take what the room leaves of the caps. None where that is enough for all rows. A
    cap on the host's memory that the options give bounds how many rows there may ever be.

    Args:
        room: what `fit_into` returned.
        grows_to: as there; rows that do not fit are not reckoned with.
    """
    wanted = room_wanted(preset, work)
    is_short = caps.is_given or room != wanted

    def room_of(rows: int, of: Workload) -> Room:
        """The room for views of so many rows: slots of a batch grow with them, and residents where
        nothing limits these."""
        if not room.residents:
            return Room(rows, math.ceil(room.slots * rows / max(1, room.rows)))
        kept = room.residents if is_short else room_wanted(preset, of).residents
        return Room.of_residents(rows, min(kept, of.n_rows))

    def needs(rows: int, of: Workload) -> list[Need]:
        """Of a batch with such a view; where it sees more rows than may reside, updated by the
        host."""
        of = _with_view_of(rows, of)
        mine = room_of(rows, of)
        rooms = [mine]
        if 0 < mine.residents < of.most.union:
            rooms.append(Room(rows, max(mine.slots, 2 * rows)))
        return [need(preset, of, each) for each in rooms]

    def holds(rows: int, of: Workload) -> bool:
        return all(map(caps.hold, needs(rows, of)))

    def grown_to(n: int) -> tuple[int, Workload]:
        return math.ceil(room.rows * n / work.n_rows), work.with_rows(n)

    capacity = None
    if caps.host_limit is not None and (preset.placement != "device" or caps.shared):
        limit = replace(caps, host=caps.host_limit)
        capacity = largest(
            work.n_rows, 2**31 - 2, lambda n: all(map(limit.hold_on_host, needs(*grown_to(n))))
        )
    if preset.placement != "split":
        return Limits(capacity=capacity)
    residents = room.residents if is_short and preset.travels else None
    least, grown = grown_to(max(work.n_rows, grows_to or 0))
    if not holds(least, grown):
        later = fit_into(preset, grown, caps)
        if grown.n_rows > work.n_rows and later is not None:  # with views that are cut
            return Limits(later.rows, later.slots, residents, capacity)
        least, grown = room.rows, work
    rows = largest(least, max(least, grown.n_rows), lambda n: holds(n, grown))
    slots = room_of(rows, grown).slots
    return Limits(
        rows=rows if rows < grown.n_rows else None,
        slots=slots if is_short and slots < grown.n_rows else None,
        residents=residents,
        capacity=capacity,
    )


def _with_view_of(rows: int, work: Workload) -> Workload:
    """A batch sees at least what one of its views does."""
    at_least = ("visible", "union", "two", "loaded", "held")
    most = {name: max(getattr(work.most, name), rows) for name in at_least}
    return replace(work, most=replace(work.most, **most))


def _with_residents(preset: Preset, work: Workload, fits: _Fits) -> Room | None:
    most = room_wanted(preset, work)
    if fits(most):
        return most
    least = residents_least(preset, work)
    kept = least.residents
    if not fits(least):
        return None
    rows = largest(least.rows, most.rows, lambda n: fits(Room.of_residents(n, kept)))
    spare = _with_spare(rows, most)
    if fits(Room.of_residents(spare, kept)):
        kept = largest(kept, most.residents, lambda n: fits(Room.of_residents(spare, n)))
    return Room.of_residents(rows, kept)


def _with_spare(rows: int, most: Room) -> int:
    """Some more, where views are whole: what they see was counted on some of the rows, and one that
    sees a little more shall not be cut."""
    return math.ceil(_SPARE * rows) if rows == most.rows else rows


def _filled(preset: Preset, work: Workload, caps: Caps, room: Room, most: int) -> Room:
    """As many residents as fit beside ``most`` rows; where not even these rows fit, as many as fit
    beside those that there are."""
    tight = replace(caps, device=int(_FILLED * caps.device))

    def holds(n: int, n_rows: int) -> bool:
        grown = work.with_rows(n_rows)
        rows = math.ceil(room.rows * n_rows / work.n_rows)
        return tight.hold(need(preset, grown, Room.of_residents(rows, n)))

    n_rows = most if holds(room.residents, most) else work.n_rows
    high = max(room.residents, n_rows)
    return Room.of_residents(room.rows, largest(room.residents, high, lambda n: holds(n, n_rows)))


def _by_host(preset: Preset, work: Workload, fits: _Fits) -> Room | None:
    least, most = room_least(preset, work), room_wanted_by_host(preset, work)
    if fits(most):
        return most
    if not fits(least):
        return None

    def two_at_once(n: int) -> int:  # unless neighbours share so much that all kept are fewer
        return min(2 * n, most.slots)

    rows = largest(least.rows, most.rows, lambda n: fits(Room(n, two_at_once(n))))
    spare, slots = _with_spare(rows, most), two_at_once(rows)
    if fits(Room(spare, slots)):
        slots = largest(slots, most.slots, lambda n: fits(Room(spare, n)))
    return Room(rows, slots)
