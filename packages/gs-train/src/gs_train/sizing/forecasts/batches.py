# SPDX-License-Identifier: Apache-2.0
"""What several ways to keep rows have in common: bytes beside the rows, seconds of drawing.

What rendering one view needs follows from the renderer's arrays and from what the fused loss keeps,
at the fullest moment.
"""

from __future__ import annotations

import math

from gs_train.engine.places import TOGETHER
from gs_train.engine.room import room_for
from gs_train.options.presets import Preset
from gs_train.renderers.footprint import Size
from gs_train.rows import morton
from gs_train.rows.attributes import GEOMETRY_WIDTH
from gs_train.sizing.forecasts.of_ranks import exchange_bytes, rounds_of, shared_rendering_bytes
from gs_train.sizing.memory import Need, Room
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload

FLOAT = 4
PLACE, SLOT = 12, 8
"""Bytes of a microbatch's row that say where it is in the union, its id and its slot; and where
torch finds it, in 64 bits."""

IDLE, UPDATE = 24, 28
"""Bytes that Adam moves for a value without a gradient, and with one."""

_WAKE = 24  # of a value of a row that is caught up, on the device

_STAGED_IMAGES = 3
_MOVING = 8 + 1  # bytes a row: the order and its check, beside the widest table once more
_UNUSED = ("rendering", "gradients", "residents", "lists of residents", "row buffers")

_LOSS = 12  # bytes a pixel: the gradient

# Planes of depths and carving are there until the gradients have gone back, those of backgrounds
# and exposures (`Workload.loss_bytes`) while the loss is computed.
CARVING = 12
"""Bytes a pixel where masks carve: alpha, its gradient, and the product of both."""

DEPTHS = 24
"""Bytes a pixel where the loss looks at depths: alpha, the sum of depths and the gradients of both,
the ratio of both, and the difference to the map."""


def add_batch(
    need: Need,
    work: Workload,
    room: Room,
    *,
    lists: int,
    place: int = 0,
    widest: int | None = None,
    slab: int = 0,
    from_tables: bool = False,
) -> Need:
    """The same need with keys, statistics, photographs, and a batch's culling and rendering.

    Nothing is rendered while rows are re-ordered or a table grows. Before rows are re-ordered, a
    batch's memory is given back. Growing copies one table at a time to a larger one, beside the
    buffers that a batch leaves.

    Args:
        need: of the rows; changed.
        lists: bytes of what culling finds.
        place: of a microbatch's row, see `PLACE`.
        widest: bytes of a row in the widest table of the device; None where rows keep their order.
        slab: bytes of a row that host memory has to hold meanwhile.
        from_tables: whether rows lie where a renderer that needs no copies can draw them.
    """
    n, image = work.n_rows, work.channels * work.pixels
    device, pinned, pageable = need.device, need.pinned, need.pageable
    device["keys"] = 4 * n
    device["densification"] = work.statistics_bytes * n
    device["culling"] = 4 * math.ceil(n / 32) + lists
    device["photographs"] = (rounds_of(work) + _STAGED_IMAGES) * image
    if work.n_ranks > 1:
        device["exchange"] = exchange_bytes(work, room.rows)
    device["rendering"] = _rendering_bytes(work, room.rows, place, from_tables=from_tables)
    kept = CARVING * work.carves + DEPTHS * work.depths
    device["rendering"] += max(kept, work.loss_bytes) * work.pixels
    if widest is not None:
        taken = max(morton.sort_bytes(n), (_MOVING + widest) * n)
        device["re-ordering"] = max(0, taken - sum(device.get(part, 0) for part in _UNUSED))
        device["growing"] = max(0, widest * n - device["rendering"] - device["re-ordering"])
    if slab:
        pageable["re-ordering"] = slab * n
    pinned["photographs"] = _STAGED_IMAGES * image
    pageable["photographs"] = work.image_cache
    return need


def list_bytes(preset: Preset, work: Workload) -> int:
    """Bytes of ids and masks of the batches that are culled at once: this one, the next, and the
    one after it that residents come for."""
    batches = 1 + preset.early_cull + (preset.early_cull and preset.residents)
    words = 4 * math.ceil(work.batch_size / 32)
    return batches * (4 + words) * math.ceil(work.most.union)


def _rendering_bytes(work: Workload, rows: int, place: int, *, from_tables: bool) -> int:
    """One microbatch with places of rows, and what the one before has not given back."""
    attributes = FLOAT * (GEOMETRY_WIDTH + work.appearance)
    # A microbatch of fewer rows is a crop, which has fewer intersections; its projection covers
    # all of its rows. One of more rows is a view that nobody has looked at.
    share = rows / work.most.largest if work.most.largest else 1.0
    tables = work.view_memory.tables if from_tables else None
    if work.n_ranks > 1:
        return shared_rendering_bytes(work, rows, place, share, tables, loss=_LOSS)
    places = place * rows
    if place == PLACE:  # of the microbatches whose rows are found together, and of those before
        of_batch = work.batch_size * max(rows, math.ceil(work.most.largest))
        places = place * min(of_batch, 2 * TOGETHER * rows)
    if tables is None:
        size = Size(rows, attributes, math.ceil(work.most.intersections * share), work.pixels)
        return work.view_memory.copies.bytes(size, loss=_LOSS) + places
    counted = math.ceil(work.most.intersections * share)
    chosen = max(room_for(rows, None), room_for(rows, counted))
    size = Size(rows, attributes, chosen, work.pixels)
    drawn = tables.bytes(size, loss=_LOSS) + places
    is_alone = work.batch_size == 1 and share >= 1.0
    return drawn if is_alone else drawn + tables.before.bytes(size)


def microbatches_of(work: Workload, room: Room) -> int:
    """Parts that the views of a mean batch are cut into so that each sees no more rows than there
    is room for; each of them is launched like a view. Of ranks, what one of these draws."""
    if work.n_ranks > 1:
        return rounds_of(work)
    rows = work.mean.visible / work.batch_size
    return work.batch_size * max(1, math.ceil(rows / max(1, room.rows)))


def culling_s(work: Workload, rates: Rates) -> float:
    """Seconds of culling a batch at once."""
    n = work.n_rows
    return n / rates.cull_rows + (work.batch_size - 1) * n / rates.cull_more_rows


def geometry_s(work: Workload, rates: Rates) -> float:
    """Seconds of Adam over the geometry of all rows, with gradients of those that a batch sees."""
    moved = (IDLE * work.n_rows + FLOAT * work.mean.union) * GEOMETRY_WIDTH
    return moved / rates.device_adam


def device_s(work: Workload, rates: Rates, room: Room) -> float:
    """Seconds of a batch whose rows are updated on the device, without what ranks exchange."""
    views_s = microbatches_of(work, room) * rates.batch_view_s
    rows_s = rates.batch_row_s * work.mean.visible
    appearance = (_WAKE + UPDATE) * work.appearance * work.mean.union
    drawing_s = views_s + rows_s + (culling_s(work, rates) + rates.batch_s)
    batch_s = drawing_s + geometry_s(work, rates) + appearance / rates.device_adam
    # Processes share the cores that were measured.
    return batch_s if rates.is_of_gpu else work.n_ranks * batch_s
