# SPDX-License-Identifier: Apache-2.0
"""All rows on the device, none of which moves: the forecasts of ``none`` and ``naive``."""

from __future__ import annotations

import math
from dataclasses import replace

from gs_train.engine.all_rows import MOST_ROWS
from gs_train.engine.sums import BatchSums
from gs_train.options.limits import Limits
from gs_train.rows.attributes import GEOMETRY_WIDTH
from gs_train.sizing.forecasts.batches import (
    FLOAT,
    PLACE,
    UPDATE,
    add_batch,
    device_s,
    list_bytes,
)
from gs_train.sizing.forecasts.forecast import Fits, Forecast, Speed
from gs_train.sizing.forecasts.of_ranks import exchange_s, with_exchange
from gs_train.sizing.memory import Need, Room, at_most
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload

_SEEN = 4 + 4 + 8  # bytes of a row that one view sees: id, mask, and torch's id in 64 bits


class WholeScene(Forecast):
    """The largest view fits whole, or the preset does not fit."""

    cuts_views = False

    def wanted(self, work: Workload) -> Room:
        return Room(math.ceil(work.most.largest))

    def least(self, work: Workload) -> Room:
        return self.wanted(work)

    def shrunk(self, work: Workload, fits: Fits) -> Room | None:
        room = self.wanted(work)
        return room if fits(room) else None

    def grown(self, room: Room, rows: int, work: Workload, *, is_short: bool) -> Room:
        return Room(rows)

    def under(self, work: Workload, limits: Limits) -> Room:
        return Room(at_most(self.wanted(work).rows, limits.rows))


class InPlace(WholeScene):
    """The forecast of ``none``: with their moments; gradients are those of the rows that a batch
    sees."""

    on_host = None

    def bytes(self, work: Workload, room: Room) -> Need:
        work, room = _with_all_rows(work, room)
        need, n, union = Need(), work.n_rows, math.ceil(work.most.union)
        geometry, appearance = FLOAT * GEOMETRY_WIDTH, FLOAT * work.appearance
        need.device["parameters"] = (geometry + appearance) * n
        need.device["moments"] = 2 * (geometry + appearance) * n
        need.device["steps of rows"] = 4 * n
        need.device["gradients"] = BatchSums.bytes(union, work.appearance)
        need.device["marks"] = union
        lists = list_bytes(self.preset, work)
        return add_batch(
            *(need, work, room), lists=lists, place=PLACE, widest=appearance, from_tables=True
        )

    def seconds(self, work: Workload, rates: Rates, room: Room) -> Speed:
        batch_s, exchanged_s = device_s(work, rates, room), exchange_s(work, rates)
        total = with_exchange(batch_s, work, exchanged_s)
        return Speed(work.batch_size / total, batch_s, exchange_s=exchanged_s)


def _with_all_rows(work: Workload, room: Room) -> tuple[Workload, Room]:
    """Where batches list all rows: each view is drawn from all of them."""
    n, most = work.n_rows, work.most
    if work.view_memory.tables is None or n * work.batch_size > MOST_ROWS:
        return work, room
    return replace(work, most=replace(most, union=float(n), largest=float(n))), Room(n)


class Mirrored(WholeScene):
    """The forecast of ``naive``: with all gradients, and with the moments on the host once more.
    Nothing overlaps, and views are culled one by one."""

    on_host = "moments are"

    def bytes(self, work: Workload, room: Room) -> Need:
        need = Need()
        rows = FLOAT * (GEOMETRY_WIDTH + work.appearance) * work.n_rows
        need.device["parameters"] = need.device["gradients"] = rows
        need.pinned["parameters"] = need.pinned["gradients"] = rows
        need.pageable["moments"] = 2 * rows
        lists = list_bytes(self.preset, work) + _SEEN * math.ceil(work.most.largest)
        return add_batch(need, work, room, lists=lists)

    def seconds(self, work: Workload, rates: Rates, room: Room) -> Speed:
        n, batch = work.n_rows, work.batch_size
        values = (GEOMETRY_WIDTH + work.appearance) * n
        drawing_s = batch * (rates.view_s + n / rates.cull_rows) + rates.row_s * work.mean.visible
        device_s = drawing_s + FLOAT * values / rates.device_adam
        link_s = FLOAT * values * (1 / rates.to_host + 1 / rates.to_device)
        host_s = UPDATE * values / rates.host_adam
        return Speed(batch / (device_s + link_s + host_s), device_s, link_s, host_s)
