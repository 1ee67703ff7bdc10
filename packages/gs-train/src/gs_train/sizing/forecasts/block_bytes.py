# SPDX-License-Identifier: Apache-2.0
"""Bytes of rows in blocks: on the device, in host memory and on the drive."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gs_train.engine.sums import BatchSums
from gs_train.options.presets import Preset
from gs_train.rows.attributes import GEOMETRY_WIDTH
from gs_train.sizing.forecasts.batches import FLOAT, PLACE, add_batch
from gs_train.sizing.memory import Need, Room
from gs_train.sizing.workload import Workload
from gs_train.tide.block_room import OF_A_BLOCK

PAGE = 4096
_HEADER, _ALIGNED = 512, 64  # of a record, and where its planes begin
_ROW = 8 + 8 + 1 + 4 + 4  # bytes of a row of a batch: places, rows, marks, key, id
_FIT = 2 * 72 + 24  # bytes of a block that is fitted: ends on both sides, and where it lies
_STEP = 48 + 6 * 64  # bytes of a step that bounds and sleeping rows read, in both memories

LOOSE, POWER = 3.5, 0.46
"""Rows of the blocks that a view touches over those that it sees, in terms of block rows over rows
seen: 1 + LOOSE (B / V)^POWER. Fitted to kd blocks of 64 to 8192 rows in a synthetic city, within
5 %; `benchmarks/tide/bench_boxes.py` prints the same as ``touched``."""

_REACH, _REACH_POWER = 6.9, 0.29
"""Blocks that a view lists over those that it touches, in terms of block rows and rows seen:
1 + _REACH B^_REACH_POWER / V^0.5, for boxes reach as far beyond rows as the largest row of a block
does, all around a view. Fitted to kd blocks of 64 to 1024 rows and views of 3,000 to 70,000 rows of
that city, within 5 %."""


@dataclass(frozen=True)
class BlockMemory:
    """Blocks that memory has room for.

    Attributes:
        slots: on the device.
        places: in host memory.
        block_rows: most rows of a block.
    """

    slots: int
    places: int
    block_rows: int

    def __post_init__(self) -> None:
        for name, least in (("slots", 1), ("places", 2), ("block_rows", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


def row_bytes(work: Workload) -> int:
    """Of a row in a slot or a place: values, both moments, its last step and its key."""
    return 3 * FLOAT * (GEOMETRY_WIDTH + work.appearance) + 8


def n_blocks(work: Workload, block_rows: int) -> int:
    """As few as hold the rows."""
    return -(-work.n_rows // block_rows)


def looseness(rows: float, block_rows: int) -> float:
    """Rows of the blocks that a view touches, for each row that it sees."""
    return 1.0 + LOOSE * (block_rows / rows) ** POWER if rows else 1.0


def listed_blocks(rows: float, by: float, block_rows: int) -> float:
    """Blocks that may hold the rows that are seen.

    Args:
        by: rows that are seen in one place, of which ``rows`` are a part or several.
    """
    listed = 1.0 + _REACH * block_rows**_REACH_POWER / by**0.5 if by else 1.0
    return rows / block_rows * looseness(by, block_rows) * listed


def listed_rows(work: Workload, rows: float, block_rows: int) -> int:
    """Rows of the blocks that hold ``rows`` rows of a batch, at most all there are."""
    by_view = work.most.largest or rows
    return min(work.n_rows, math.ceil(rows * looseness(by_view, block_rows)))


def block_need(
    preset: Preset, work: Workload, memory: BlockMemory, *, n_steps: int = 30_000
) -> Need:
    """Bytes by part of a run whose rows lie in blocks.

    Nothing on the device grows with the number of rows, and on the host what is known of each
    block does.

    Args:
        preset: which, for photographs.
        n_steps: of the run.
    """
    need, block = Need(), memory.block_rows
    n, union = n_blocks(work, block), math.ceil(work.most.union)
    slots, places = min(memory.slots, n), min(memory.places, max(n, 2))
    listed = listed_rows(work, union, block)
    words = FLOAT * math.ceil(work.batch_size / 32)
    need.device["slots"] = slots * block * row_bytes(work)
    need.device["gradients"] = BatchSums.bytes(listed, work.appearance)
    values = FLOAT * (GEOMETRY_WIDTH + work.appearance)
    need.device["rows of batches"] = (values + _ROW + words) * listed
    need.device["bounds"] = 2 * _STEP * n_steps + _FIT * -(-listed // block)
    need.pinned["places"] = places * block * row_bytes(work)
    need.pageable["blocks"] = OF_A_BLOCK * n
    need.pageable["steps"] = 2 * _STEP * n_steps
    of_batch = replace(work, n_rows=max(1, listed), statistics_bytes=0)
    view = listed_rows(work, work.most.largest, block)
    of_batch = replace(of_batch, most=replace(of_batch.most, largest=float(view)))
    need = add_batch(need, of_batch, Room(view), lists=0, place=PLACE, from_tables=True)
    del need.device["densification"], need.device["culling"]
    return need


def record_bytes(work: Workload, block_rows: int) -> int:
    """Of a full block on the drive once its rows have been trained: whole pages of geometry, and of
    appearance."""
    geometry, appearance = (
        -(-FLOAT * block_rows * width // _ALIGNED) * _ALIGNED
        for width in (GEOMETRY_WIDTH, work.appearance)
    )
    number = -(-FLOAT * block_rows // _ALIGNED) * _ALIGNED
    head, tail = _HEADER + 3 * geometry + 2 * number, 3 * appearance
    return PAGE * (-(-head // PAGE) + -(-tail // PAGE))


def drive_bytes(work: Workload, block_rows: int) -> int:
    """Of the records of all rows once each has been trained. Records that change between two
    snapshots are there twice meanwhile."""
    return n_blocks(work, block_rows) * record_bytes(work, block_rows)
