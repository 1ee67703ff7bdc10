# SPDX-License-Identifier: Apache-2.0
"""Geometry on the device and appearance in host memory, from where rows come to the device: the
forecasts of ``best``, ``clm`` and ``gs-scale``."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from gs_train.engine.buffers import HEADROOM, RowBuffer
from gs_train.engine.residents import Residents
from gs_train.engine.sums import BatchSums
from gs_train.options.limits import Limits
from gs_train.published.streamed import RING_BYTES
from gs_train.published.untouched import Untouched
from gs_train.rows.attributes import GEOMETRY_WIDTH
from gs_train.sizing.forecasts.batches import (
    FLOAT,
    IDLE,
    PLACE,
    SLOT,
    UPDATE,
    add_batch,
    culling_s,
    device_s,
    geometry_s,
    list_bytes,
    microbatches_of,
)
from gs_train.sizing.forecasts.forecast import Fits, Forecast, Speed
from gs_train.sizing.forecasts.of_ranks import exchange_s, with_exchange
from gs_train.sizing.memory import Need, Room, at_most, largest
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload

_MOST_CROPS = 16
"""Parts that a view may be cut into before a cap counts as too small."""

_SPARE = 1.03

_OF_A_BATCH = 4 + 1  # bytes of a row that a batch sees: its slot and its mark
_TRAVELS = 3 * FLOAT  # bytes of a value with both moments
_CATCH_UP, _CROSSING = 16, 8  # bytes of a value that the host moves beside its update
_WIDEST = 16  # bytes of a row in the widest table of the device
_SLAB = 64 + 8  # bytes of a row on the host while rows are re-ordered: a slab, and the order


class SplitRows(Forecast):
    """Views that see more rows than there is room for are drawn in parts."""

    on_host = "appearance is"
    cuts_views = True


class Resident(SplitRows):
    """The forecast of ``best``: rows come with their moments and stay while batches want them. The
    device updates the rows of a batch, and rows of two batches in a row have slots."""

    def bytes(self, work: Workload, room: Room) -> Need:
        need, n, width = _split_rows(work), work.n_rows, work.appearance
        kept = min(room.residents, n)
        union = min(math.ceil(work.most.union), kept)
        need.device["gradients"] += RowBuffer.bytes(union, width)
        need.device["residents"] = Residents.table_bytes(kept, width)
        lists = Residents.list_bytes(n, kept)
        need.device["lists of residents"] = lists + _OF_A_BATCH * union
        need.pinned["moments"] = 2 * FLOAT * width * n
        need.pinned["steps of rows"] = 4 * n
        lists = list_bytes(self.preset, work)
        return add_batch(
            *(need, work, room),
            lists=lists,
            place=PLACE,
            widest=_WIDEST,
            slab=_SLAB,
            from_tables=True,
        )

    def seconds(self, work: Workload, rates: Rates, room: Room) -> Speed:
        batch_s = device_s(work, rates, room)
        travel_s = _TRAVELS * work.appearance / rates.both  # while another row leaves
        new, late = _rows_that_come(work, room.residents)
        link_s, late_s = travel_s * new, travel_s * late
        exchanged_s = exchange_s(work, rates)
        total = with_exchange(max(batch_s, link_s - late_s) + late_s, work, exchanged_s)
        return Speed(work.batch_size / total, batch_s, link_s, exchange_s=exchanged_s)

    def wanted(self, work: Workload) -> Room:
        kept = Residents.wanted(work.most.two, work.n_rows)
        return Room.of_residents(math.ceil(work.most.largest), kept)

    def least(self, work: Workload) -> Room:
        kept = min(math.ceil(work.most.union), self.wanted(work).residents)
        return Room.of_residents(_least_rows(work), max(1, kept))

    def shrunk(self, work: Workload, fits: Fits) -> Room | None:
        least, most = self.least(work), self.wanted(work)
        of_residents, kept = Room.of_residents, least.residents
        return _shrunk(least, most, of_residents, lambda _: kept, most.residents, fits)

    def grown(self, room: Room, rows: int, work: Workload, *, is_short: bool) -> Room:
        kept = room.residents if is_short else self.wanted(work).residents
        return Room.of_residents(rows, min(kept, work.n_rows))

    def under(self, work: Workload, limits: Limits) -> Room:
        room = self.wanted(work)
        kept = room.residents if limits.residents is None else limits.residents
        return Room.of_residents(at_most(room.rows, limits.rows), min(kept, work.n_rows))


def _rows_that_come(work: Workload, residents: int) -> tuple[float, float]:
    """Rows of a batch that the one before has not left on the device, and those among them that
    find no slot before it ends.

    Slots beyond those of two batches hold rows that come back; with a slot for each row all do.
    Where the views of a tile follow each other, slots for what all of them see leave one coming a
    tile to each row.
    """
    union, two = work.mean.union, min(work.mean.two, work.n_rows)
    if residents <= two:
        return two - union, min(two - union, two - residents)
    slots, new = [two, float(work.n_rows)], [two - union, 0.0]
    if two < work.tile_rows < work.n_rows:
        slots.insert(1, work.tile_rows)
        new.insert(1, min(two - union, work.tile_rows / work.tile_batches))
    return float(np.interp(residents, slots, new)), 0.0


class Streamed(SplitRows):
    """The forecast of ``clm`` and ``gs-scale``, and of ``best`` where too few rows can reside: rows
    come for a batch and the host updates them. Those of a microbatch are in slots, and those that
    later microbatches see may stay there."""

    def bytes(self, work: Workload, room: Room) -> Need:
        need, preset, n = _split_rows(work), self.preset, work.n_rows
        appearance, lists = FLOAT * work.appearance, list_bytes(preset, work)
        need.device["row buffers"] = int(2 * appearance * room.slots * HEADROOM)
        need.device["plans"] = self._plan_bytes(work)
        if preset.retain == "previous":
            returning = max(0.0, work.most.loaded - work.most.union)
            need.device["returning gradients"] = appearance * math.ceil(returning)
        # Rows that sleep come through a ring of their own.
        need.pinned["rings"] = (1 + (preset.semantics == "deferred")) * RING_BYTES
        if preset.semantics == "dense":
            need.pinned["lists of untouched rows"] = Untouched.list_bytes(n)
            lists += Untouched.device_bytes(n, math.ceil(work.most.union))
        need.pageable["moments"] = 2 * appearance * n
        need.pageable["steps of rows"] = 4 * n
        return add_batch(need, work, room, lists=lists, place=SLOT, widest=_WIDEST, slab=_SLAB)

    def seconds(self, work: Workload, rates: Rates, room: Room) -> Speed:
        rows, appearance = work.mean, work.appearance
        microbatches = microbatches_of(work, room)
        views_s = microbatches * rates.streamed_view_s
        drawing_s = views_s + rates.streamed_row_s * rows.visible + culling_s(work, rates)
        device_s = drawing_s + geometry_s(work, rates)
        is_kept = self.preset.retain == "last_use"
        crossing = appearance * (rows.union if is_kept else rows.loaded)
        link_s = FLOAT * crossing / min(rates.both, rates.gather)
        updated = appearance * rows.union
        if self.preset.semantics == "dense":
            untouched = appearance * (work.n_rows - rows.union)
            host_s = IDLE * untouched / rates.host_adam + UPDATE * updated / rates.host_rows
        else:
            host_s = (UPDATE + _CATCH_UP) * updated / rates.host_rows
        host_s += _CROSSING * crossing / rates.host_adam
        # One microbatch's rows come before anything is drawn or are updated after all is.
        longest = max(device_s, link_s, host_s)
        ends_s = (device_s + link_s + host_s - longest) / microbatches
        exchanged_s = exchange_s(work, rates)
        total = with_exchange(longest + ends_s, work, exchanged_s)
        return Speed(work.batch_size / total, device_s, link_s, host_s, exchanged_s)

    def wanted(self, work: Workload) -> Room:
        rows = work.most.largest
        if self.preset.split_share is not None:
            rows = min(rows, self.preset.split_share * work.n_rows)
        # Without slots to keep, two buffers take turns.
        slots = work.most.held if self.preset.retain == "last_use" else 2 * rows
        return Room(math.ceil(rows), math.ceil(max(slots, rows)))

    def least(self, work: Workload) -> Room:
        return Room(_least_rows(work), 2 * _least_rows(work))

    def shrunk(self, work: Workload, fits: Fits) -> Room | None:
        most = self.wanted(work)

        def two_at_once(rows: int) -> int:  # unless neighbours share so much that all are fewer
            return min(2 * rows, most.slots)

        return _shrunk(self.least(work), most, Room, two_at_once, most.slots, fits)

    def grown(self, room: Room, rows: int, work: Workload, *, is_short: bool) -> Room:
        return Room(rows, math.ceil(room.slots * rows / max(1, room.rows)))

    def under(self, work: Workload, limits: Limits) -> Room:
        room = self.wanted(work)
        return Room(at_most(room.rows, limits.rows), at_most(room.slots, limits.slots))

    def _plan_bytes(self, work: Workload) -> int:
        """Lists of gs-order, ids, positions and slots, and where sums of loaded rows begin."""
        visible = work.most.visible
        if self.preset.retain == "last_use":
            return math.ceil(16 * visible + 20 * work.most.union)
        return math.ceil(12 * visible + 20 * work.most.loaded)


def _split_rows(work: Workload) -> Need:
    """Rows whose geometry is on the device and whose appearance is in host memory."""
    need, geometry = Need(), FLOAT * GEOMETRY_WIDTH
    need.device["parameters"] = geometry * work.n_rows
    need.device["moments"] = 2 * geometry * work.n_rows
    need.device["gradients"] = BatchSums.bytes(math.ceil(work.most.union), 0)
    need.pinned["parameters"] = FLOAT * work.appearance * work.n_rows
    return need


def _least_rows(work: Workload) -> int:
    """Of a part of the largest view, in as many parts as it may be cut into. Ranks cut no view
    because of its rows."""
    if work.n_ranks > 1:
        return math.ceil(work.most.largest)
    return math.ceil(work.most.largest / _MOST_CROPS)


def _shrunk(
    least: Room,
    most: Room,
    room_of: Callable[[int, int], Room],
    fewest: Callable[[int], int],
    most_kept: int,
    fits: Fits,
) -> Room | None:
    """All that is wanted; else as many rows of a view as fit, then as many kept rows as do.

    Args:
        least, most: where the search begins and ends.
        room_of: of rows of a view, and of rows that are kept.
        fewest: rows that must be kept beside views of so many rows.
        most_kept: rows that ``most`` keeps.
    """
    if fits(most):
        return most
    if not fits(least):
        return None
    rows = largest(least.rows, most.rows, lambda n: fits(room_of(n, fewest(n))))
    kept = fewest(rows)
    # What views see was counted on some of the rows: one that sees a little more shall not be cut.
    spare = math.ceil(_SPARE * rows) if rows == most.rows else rows
    if fits(room_of(spare, kept)):
        kept = largest(kept, most_kept, lambda n: fits(room_of(spare, n)))
    return room_of(rows, kept)
