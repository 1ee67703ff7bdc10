# SPDX-License-Identifier: Apache-2.0
"""Appearance in host memory, updated there, whose rows come for a batch: the forecast of ``clm``
and ``gs-scale``, and of ``best`` where too few rows can reside."""

from __future__ import annotations

import math

from gs_train.engine.buffers import HEADROOM
from gs_train.options.limits import Limits
from gs_train.published.streamed import RING_BYTES
from gs_train.published.untouched import Untouched
from gs_train.sizing.forecasts.batches import (
    FLOAT,
    IDLE,
    SLOT,
    UPDATE,
    add_batch,
    culling_s,
    geometry_s,
    least_rows,
    list_bytes,
    microbatches_of,
    split_rows,
)
from gs_train.sizing.forecasts.forecast import Fits, Forecast, Speed, shrunk
from gs_train.sizing.memory import Need, Room, at_most
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload

_CATCH_UP, _CROSSING = 16, 8  # bytes of a value that the host moves beside its update
SLAB = 64 + 8
"""Bytes of a row on the host while rows are re-ordered: a slab, and the order."""


class Streamed(Forecast):
    """Rows of a microbatch are in slots, and those that later microbatches see may stay there."""

    on_host = "appearance is"
    cuts_views = True

    def bytes(self, work: Workload, room: Room) -> Need:
        need, preset, n = split_rows(work), self.preset, work.n_rows
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
        return add_batch(need, work, room, lists=lists, place=SLOT, widest=16, slab=SLAB)

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
        return Speed(work.batch_size / (longest + ends_s), device_s, link_s, host_s)

    def wanted(self, work: Workload) -> Room:
        rows = work.most.largest
        if self.preset.split_share is not None:
            rows = min(rows, self.preset.split_share * work.n_rows)
        # Without slots to keep, two buffers take turns.
        slots = work.most.held if self.preset.retain == "last_use" else 2 * rows
        return Room(math.ceil(rows), math.ceil(max(slots, rows)))

    def least(self, work: Workload) -> Room:
        return Room(least_rows(work), 2 * least_rows(work))

    def shrunk(self, work: Workload, fits: Fits) -> Room | None:
        most = self.wanted(work)

        def two_at_once(rows: int) -> int:  # unless neighbours share so much that all are fewer
            return min(2 * rows, most.slots)

        return shrunk(self.least(work), most, Room, two_at_once, most.slots, fits)

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
