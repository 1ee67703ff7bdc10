# SPDX-License-Identifier: Apache-2.0
"""All rows and gradients on the device and, with the moments, on the host once more: the forecast
of ``naive``."""

from __future__ import annotations

import math

from gs_train.rows.attributes import GEOMETRY_WIDTH
from gs_train.sizing.forecasts.batches import FLOAT, UPDATE, add_batch, list_bytes
from gs_train.sizing.forecasts.forecast import Speed, WholeScene
from gs_train.sizing.memory import Need, Room
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload

_SEEN = 4 + 4 + 8  # bytes of a row that one view sees: id, mask, and torch's id in 64 bits


class Mirrored(WholeScene):
    """Nothing overlaps, and views are culled one by one."""

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
