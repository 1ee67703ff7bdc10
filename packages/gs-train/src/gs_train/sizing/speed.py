# SPDX-License-Identifier: Apache-2.0
"""Images a second that a preset should reach: what each part takes, and which part is longest."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gs_train.options.presets import Preset
from gs_train.rows.attributes import GEOMETRY_WIDTH
from gs_train.sizing.rates import Rates
from gs_train.sizing.room import Room, room_wanted
from gs_train.sizing.workload import Workload

_FLOAT = 4
# Bytes a value. Of Adam on the device: without gradients, of rows that are caught up.
_DEVICE_ADAM, _WAKE = 24, 24
_IDLE, _UPDATE, _CATCH_UP, _CROSSING = 24, 28, 16, 8
_TRAVELS = 3 * _FLOAT  # with both moments


@dataclass(frozen=True)
class Speed:
    """One batch of a preset.

    Attributes:
        images_per_second: of the batch when its longest part hides the others, but for rows that
            come late because there was no room for them before, and for the first rows to come and
            the last to be updated of a batch that keeps none; or when all follow one another in a
            preset that overlaps nothing.
        device_s: seconds of culling, rendering and the device's optimizer.
        link_s: seconds of rows on their way.
        host_s: seconds of the host optimizer.
        bound: the longest of them, ``device``, ``link`` or ``host``.
    """

    images_per_second: float
    device_s: float
    link_s: float
    host_s: float

    @property
    def bound(self) -> str:
        parts = {"device": self.device_s, "link": self.link_s, "host": self.host_s}
        return max(parts, key=lambda name: parts[name])


def predict(preset: Preset, work: Workload, rates: Rates, room: Room | None = None) -> Speed:
    """The seconds of a mean batch.

    What overlaps is taken to overlap completely.

    Args:
        room: of the working memory; :func:`room_wanted` when None.
    """
    room = room or room_wanted(preset, work)
    rows, n, batch = work.mean, work.n_rows, work.batch_size
    appearance, width = work.appearance, GEOMETRY_WIDTH + work.appearance
    on_device, is_split = preset.placement == "device", preset.placement == "split"
    if preset.placement != "mirror":
        cull_s = n / rates.cull_rows + (batch - 1) * n / rates.cull_more_rows
        view_s, row_s = rates.streamed_view_s, rates.streamed_row_s
        microbatches = batch * _crops_of_a_view(work, room)
        if on_device or room.residents:
            view_s, row_s = rates.batch_view_s, rates.batch_row_s
            cull_s += rates.batch_s
        device_s = microbatches * view_s + row_s * rows.visible + cull_s
    else:
        device_s = batch * (rates.view_s + n / rates.cull_rows) + rates.row_s * rows.visible
    link_s = host_s = late_s = ends_s = 0.0
    if preset.placement == "mirror":
        device_s += _FLOAT * width * n / rates.device_adam
        link_s = _FLOAT * width * n * (1 / rates.to_host + 1 / rates.to_device)
        host_s = _UPDATE * width * n / rates.host_adam
    else:
        device_s += (_DEVICE_ADAM * n + _FLOAT * rows.union) * GEOMETRY_WIDTH / rates.device_adam
    if on_device or room.residents:
        device_s += (_WAKE + _UPDATE) * appearance * rows.union / rates.device_adam
    if is_split and room.residents:
        travel_s = _TRAVELS * appearance / rates.both  # while another row leaves
        new, late = _rows_that_come(work, room.residents)
        link_s, late_s = travel_s * new, travel_s * late
    elif is_split:
        crossing = appearance * (rows.union if preset.retain == "last_use" else rows.loaded)
        link_s = _FLOAT * crossing / min(rates.both, rates.gather)
        updated = appearance * rows.union
        if preset.semantics == "dense":
            untouched = appearance * (n - rows.union)
            host_s = _IDLE * untouched / rates.host_adam + _UPDATE * updated / rates.host_rows
        else:
            host_s = (_UPDATE + _CATCH_UP) * updated / rates.host_rows
        host_s += _CROSSING * crossing / rates.host_adam
        # One microbatch's rows come before anything is drawn or are updated after all is.
        ends_s = (device_s + link_s + host_s - max(device_s, link_s, host_s)) / microbatches
    parts = (device_s, link_s, host_s)
    early = (device_s, link_s - late_s, host_s)
    total = max(early) + late_s + ends_s if preset.overlapped else sum(parts)
    return Speed(batch / total, *parts)


def _crops_of_a_view(work: Workload, room: Room) -> int:
    """Parts that a mean view is cut into so that each sees no more rows than there is room for;
    each of them is launched like a view."""
    rows = work.mean.visible / work.batch_size
    return max(1, math.ceil(rows / max(1, room.rows)))


def _rows_that_come(work: Workload, residents: int) -> tuple[float, float]:
    """Rows of a batch that the one before has not left on the device, and those among them that
    find no slot before it ends.

    Slots beyond those of two batches hold rows that come back; with a slot for each row all do.
    """
    union, two = work.mean.union, min(work.mean.two, work.n_rows)
    if residents <= two:
        return two - union, min(two - union, two - residents)
    return (two - union) * (1 - (residents - two) / max(1.0, work.n_rows - two)), 0.0
