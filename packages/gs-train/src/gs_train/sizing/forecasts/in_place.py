# SPDX-License-Identifier: Apache-2.0
"""All rows on the device with their moments, none of which moves: the forecast of ``none``."""

from __future__ import annotations

import math

from gs_train.engine.buffers import RowBuffer
from gs_train.rows.attributes import GEOMETRY_WIDTH
from gs_train.sizing.forecasts.batches import FLOAT, PLACE, add_batch, device_s, list_bytes
from gs_train.sizing.forecasts.forecast import Speed, WholeScene
from gs_train.sizing.memory import Need, Room
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload


class InPlace(WholeScene):
    """Gradients are those of the rows that a batch sees."""

    on_host = None

    def bytes(self, work: Workload, room: Room) -> Need:
        need, n, union = Need(), work.n_rows, math.ceil(work.most.union)
        geometry, appearance = FLOAT * GEOMETRY_WIDTH, FLOAT * work.appearance
        need.device["parameters"] = (geometry + appearance) * n
        need.device["moments"] = 2 * (geometry + appearance) * n
        need.device["steps of rows"] = 4 * n
        need.device["gradients"] = geometry * union + RowBuffer.bytes(union, work.appearance)
        need.device["marks"] = union
        lists = list_bytes(self.preset, work)
        return add_batch(need, work, room, lists=lists, place=PLACE, widest=appearance)

    def seconds(self, work: Workload, rates: Rates, room: Room) -> Speed:
        batch_s = device_s(work, rates, room)
        return Speed(work.batch_size / batch_s, batch_s)
