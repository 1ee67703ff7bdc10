# SPDX-License-Identifier: Apache-2.0
"""The room that a preset gets where memory is short, and where there is more than it wants."""

from __future__ import annotations

import math
from dataclasses import replace

from gs_train.options.limits import Limits
from gs_train.options.presets import Preset
from gs_train.sizing.forecasts import forecast_of, forecasts_of, need
from gs_train.sizing.memory import MOST_ROWS, Caps, Need, Room, largest
from gs_train.sizing.workload import Workload

_FILLED = 0.9  # of a device's cap, by residents that nobody asked for: counting is not exact


def fit_into(preset: Preset, work: Workload, caps: Caps, *, grows_to: int = 0) -> Room | None:
    """The room that a preset gets within the caps; None where it does not fit.

    Residents come first, at least those of one batch, for which views are cut if they must be.
    Where not even these fit the host updates all rows; then rows of one microbatch come first, and
    rows that are kept for later ones follow. Where the options give the device's memory and all
    that is wanted fits, residents take what is left of it, room for rows to come included.

    Args:
        grows_to: rows that densification may reach, where that is more than there are.
    """
    for way in forecasts_of(preset):
        room = way.shrunk(work, lambda room: caps.hold(need(preset, work, room)))
        if room is None:
            continue
        if room.residents and caps.is_given and room == way.wanted(work):
            return _filled(preset, work, caps, room, max(work.n_rows, grows_to))
        return room
    return None


def largest_n(preset: Preset, work: Workload, caps: Caps) -> int:
    """The largest N that fits when views see the share of it that they do now; 0 where a single
    row does not fit, at most `MOST_ROWS`."""

    def fits(n: int) -> bool:
        return fit_into(preset, work.with_rows(n), caps) is not None

    return largest(1, MOST_ROWS, fits) if fits(1) else 0


def smallest_rooms(preset: Preset, work: Workload) -> list[Room]:
    """What a preset gets along with, in the ways that it has. With residents that needs less on
    the host, and more on the device."""
    return [way.least(work) for way in reversed(forecasts_of(preset))]


def limits_within(
    preset: Preset, work: Workload, caps: Caps, room: Room, *, grows_to: int = 0
) -> Limits:
    """What a run with this room has to respect.

    Views and batches that see more than those that were looked at, and what they see when there are
    more rows, may take what the room leaves of the caps. None where that is enough for all rows. A
    cap on the host's memory that the options give bounds how many rows there may ever be.

    Args:
        room: what `fit_into` returned.
        grows_to: as there; rows that do not fit are not reckoned with.
    """
    way = forecast_of(preset, room)
    is_short = caps.is_given or room != forecast_of(preset).wanted(work)

    def needs(rows: int, of: Workload) -> list[Need]:
        """Of a batch with a view of so many rows; where it sees more rows than may reside, updated
        by the host."""
        of = _with_view_of(rows, of)
        mine = way.grown(room, rows, of, is_short=is_short)
        rooms = [mine]
        if 0 < mine.residents < of.most.union:
            rooms.append(Room(rows, max(mine.slots, 2 * rows)))
        return [need(preset, of, each) for each in rooms]

    def grown_to(n: int) -> tuple[int, Workload]:
        return math.ceil(room.rows * n / work.n_rows), work.with_rows(n)

    capacity = None
    if caps.host_limit is not None and (way.on_host or caps.shared):
        limit = replace(caps, host=caps.host_limit)
        capacity = largest(
            work.n_rows, MOST_ROWS, lambda n: all(map(limit.hold_on_host, needs(*grown_to(n))))
        )
    if not way.cuts_views:
        return Limits(capacity=capacity)
    residents = room.residents if is_short and preset.residents else None
    least, grown = grown_to(max(work.n_rows, grows_to))
    if not all(map(caps.hold, needs(least, grown))):
        later = fit_into(preset, grown, caps)
        if grown.n_rows > work.n_rows and later is not None:  # with views that are cut
            return Limits(later.rows, later.slots, residents, capacity)
        least, grown = room.rows, work
    most = max(least, grown.n_rows)
    rows = largest(least, most, lambda n: all(map(caps.hold, needs(n, grown))))
    slots = way.grown(room, rows, grown, is_short=is_short).slots
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
