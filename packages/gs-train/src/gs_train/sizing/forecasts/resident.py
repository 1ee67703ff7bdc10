# SPDX-License-Identifier: Apache-2.0
"""Appearance in host memory whose rows come to the device with their moments and stay while batches
want them: the forecast of ``best``."""

from __future__ import annotations

import math

from gs_train.engine.buffers import RowBuffer
from gs_train.engine.residents import Residents
from gs_train.options.limits import Limits
from gs_train.sizing.forecasts.batches import (
    FLOAT,
    PLACE,
    add_batch,
    device_s,
    least_rows,
    list_bytes,
    split_rows,
)
from gs_train.sizing.forecasts.forecast import Fits, Forecast, Speed, shrunk
from gs_train.sizing.forecasts.streamed import SLAB
from gs_train.sizing.memory import Need, Room, at_most
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload

_OF_A_BATCH = 4 + 1  # bytes of a row that a batch sees: its slot and its mark
_TRAVELS = 3 * FLOAT  # bytes of a value with both moments


class Resident(Forecast):
    """The device updates the rows of a batch, and rows of two batches in a row have slots."""

    on_host = "appearance is"
    cuts_views = True

    def bytes(self, work: Workload, room: Room) -> Need:
        need, n, width = split_rows(work), work.n_rows, work.appearance
        kept = min(room.residents, n)
        union = min(math.ceil(work.most.union), kept)
        need.device["gradients"] += RowBuffer.bytes(union, width)
        need.device["residents"] = Residents.table_bytes(kept, width)
        lists = Residents.list_bytes(n, kept)
        need.device["lists of residents"] = lists + _OF_A_BATCH * union
        need.pinned["moments"] = 2 * FLOAT * width * n
        need.pinned["steps of rows"] = 4 * n
        lists = list_bytes(self.preset, work)
        return add_batch(need, work, room, lists=lists, place=PLACE, widest=16, slab=SLAB)

    def seconds(self, work: Workload, rates: Rates, room: Room) -> Speed:
        batch_s = device_s(work, rates, room)
        travel_s = _TRAVELS * work.appearance / rates.both  # while another row leaves
        new, late = _rows_that_come(work, room.residents)
        link_s, late_s = travel_s * new, travel_s * late
        total = max(batch_s, link_s - late_s) + late_s
        return Speed(work.batch_size / total, batch_s, link_s)

    def wanted(self, work: Workload) -> Room:
        kept = Residents.wanted(work.most.two, work.n_rows)
        return Room.of_residents(math.ceil(work.most.largest), kept)

    def least(self, work: Workload) -> Room:
        kept = min(math.ceil(work.most.union), self.wanted(work).residents)
        return Room.of_residents(least_rows(work), max(1, kept))

    def shrunk(self, work: Workload, fits: Fits) -> Room | None:
        least, most = self.least(work), self.wanted(work)
        of_residents, kept = Room.of_residents, least.residents
        return shrunk(least, most, of_residents, lambda _: kept, most.residents, fits)

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
    """
    union, two = work.mean.union, min(work.mean.two, work.n_rows)
    if residents <= two:
        return two - union, min(two - union, two - residents)
    return (two - union) * (1 - (residents - two) / max(1.0, work.n_rows - two)), 0.0
