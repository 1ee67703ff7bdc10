# SPDX-License-Identifier: Apache-2.0
"""The blocks that memory has room for, and the bytes of these."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gs_train.blocks.block_planes import first_row_bytes
from gs_train.rows.attributes import GEOMETRY_WIDTH, appearance_width

LEAST_SLOTS, LEAST_PLACES = 1, 2

_LOOKS_BYTES = 2 << 30
"""Of slots, and of places, where nothing is trained."""

OF_A_BLOCK = 280
"""Bytes of host memory for each block, wherever the block is: box, index, states and hints, and
copies of box and index while a snapshot is made. `benchmarks/tide/bench_limits.py` measures 249
with blocks of 64 rows; what few large blocks take is below its noise."""


def stored_row_bytes(sh_degree: int) -> int:
    """Of a row with its moments, its key and the step that it was updated in."""
    return 3 * 4 * (GEOMETRY_WIDTH + appearance_width(sh_degree)) + 8


@dataclass(frozen=True)
class BlockRoom:
    """The blocks that memory has room for.

    Attributes:
        slots: on the device.
        places: in host memory.
        block_rows: rows of a block at most.
        row_bytes: of a row with all that is stored of it.
        n_rows: of the scene.
        batch_rows: rows of a batch that the device has room for beside the slots.
        device_memory: bytes of the device that a run may take; None: not told.
        device_for: see `BatchRoom`.
    """

    slots: int
    places: int
    block_rows: int
    row_bytes: int
    n_rows: int
    batch_rows: int
    device_memory: int | None = None
    device_for: Callable[[int], int | None] | None = field(default=None, compare=False, repr=False)

    @property
    def block_bytes(self) -> int:
        """Of a block in memory."""
        return self.block_rows * self.row_bytes

    @property
    def device_bytes(self) -> int:
        """Of the slots."""
        return self.slots * self.block_bytes

    @property
    def host_bytes(self) -> int:
        """Of the places, and of what is known about all blocks."""
        return self.places * self.block_bytes + OF_A_BLOCK * n_blocks(self.n_rows, self.block_rows)

    @property
    def drive_bytes(self) -> int:
        """Of the records of all rows once each has been trained; before, and beside what older
        snapshots need, records are smaller and others more."""
        return self.n_rows * self.row_bytes

    @property
    def first_drive_bytes(self) -> int:
        """Of the records of all rows of a cloud before any has been trained, about."""
        first = math.ceil(self.n_rows * first_row_bytes(self.block_rows))
        return min(self.drive_bytes, first)

    def for_looks(self, *, slots: int | None, arena_bytes: int | None) -> BlockRoom:
        """Less memory, for looking at the rows beside whoever trains them.

        Args:
            slots, arena_bytes: no more than these, as the options of the run say; None: not said.
        """
        each = self.block_bytes
        most_slots = _LOOKS_BYTES // each if slots is None else min(slots, _LOOKS_BYTES // each)
        most_bytes = _LOOKS_BYTES if arena_bytes is None else min(arena_bytes, _LOOKS_BYTES)
        return replace(
            self,
            slots=max(LEAST_SLOTS, min(self.slots, most_slots)),
            places=max(LEAST_PLACES, min(self.places, most_bytes // each)),
        )

    def to_plain(self) -> dict[str, Any]:
        """For a plan and for metrics.json."""
        return {
            "slots": self.slots,
            "places": self.places,
            "block_rows": self.block_rows,
            "batch_rows": self.batch_rows,
            "device_bytes": self.device_bytes,
            "host_bytes": self.host_bytes,
            "drive_bytes": self.drive_bytes,
        }


def n_blocks(n_rows: int, block_rows: int) -> int:
    """As few as hold the rows."""
    return -(-n_rows // block_rows)
