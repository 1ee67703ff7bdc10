# SPDX-License-Identifier: Apache-2.0
"""Seconds of a batch whose rows lie in blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gs_train.errors import InputError
from gs_train.rows.attributes import GEOMETRY_WIDTH
from gs_train.sizes import parse_bytes
from gs_train.sizing.forecasts.batches import FLOAT, UPDATE
from gs_train.sizing.forecasts.block_bytes import (
    BlockMemory,
    listed_rows,
    looseness,
    n_blocks,
    record_bytes,
    row_bytes,
)
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload

_LOOKED = 16  # bytes of a value that is caught up elsewhere
_FITTED = 3 * 6 * FLOAT + 4  # of a row whose block is fitted
_WAKE = 24


@dataclass(frozen=True)
class DriveRates:
    """Bytes a second of whole records in any order.

    Attributes:
        read, write: alone.
    """

    read: float
    write: float

    def __post_init__(self) -> None:
        for name in ("read", "write"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")

    @classmethod
    def parsed(cls, text: str, *, option: str) -> DriveRates:
        """``READ:WRITE`` in bytes a second, such as ``4GB:2.1GB``.

        Raises:
            InputError: it is no such pair; names ``option``.
        """
        parts = re.split(":", text)
        if len(parts) != 2:
            raise InputError(
                f"{option} must be READ:WRITE in bytes a second, such as 4GB:2.1GB, got {text!r}"
            )
        read, write = (parse_bytes(part, option=option) for part in parts)
        if not read or not write:
            raise InputError(f"{option} must be two rates above 0, got {text!r}")
        return cls(read, write)


@dataclass(frozen=True)
class BlockTraffic:
    """Blocks of a mean batch.

    Attributes:
        used: that hold rows which the batch sees.
        loaded: of these, in host memory or on the drive before.
        read: of these, on the drive alone before; as many are written.
    """

    used: float
    loaded: float
    read: float


@dataclass(frozen=True)
class BlockSpeed:
    """One batch of rows in blocks.

    Attributes:
        images_per_second: of the batch when its longest part hides the others.
        device_s: seconds of looking, drawing and updating.
        link_s: seconds of blocks over the link.
        drive_s: seconds of records.
        traffic: blocks that these move.
    """

    images_per_second: float
    device_s: float
    link_s: float
    drive_s: float
    traffic: BlockTraffic

    @property
    def bound(self) -> str:
        """The longest of the parts, ``device``, ``link`` or ``drive``."""
        parts = {"device": self.device_s, "link": self.link_s, "drive": self.drive_s}
        return max(parts, key=lambda name: parts[name])


def block_traffic(work: Workload, memory: BlockMemory) -> BlockTraffic:
    """What a mean batch uses and moves, when views come in the workload's order.

    In shuffled order all blocks are as likely as each other. In tiles, the blocks of a tile are
    loaded once where they have room, and again for each batch as far as they have none.
    """
    block, n = memory.block_rows, float(n_blocks(work, memory.block_rows))
    by_view = work.mean.visible / work.batch_size
    used = min(n, work.mean.union * looseness(by_view, block) / block)

    def missing(room: float) -> float:
        if room >= n:
            return 0.0
        anew = used * (1.0 - room / n)
        if not work.tile_batches:
            return anew
        tile = min(n, max(used, work.tile_rows * looseness(by_view, block) / block))
        once = tile / work.tile_batches * (1.0 - room / n)
        again = used * max(0.0, 1.0 - room / tile)
        return min(used, max(once, again))

    return BlockTraffic(used, missing(memory.slots), missing(memory.slots + memory.places))


def block_speed(work: Workload, rates: Rates, memory: BlockMemory, drive: DriveRates) -> BlockSpeed:
    """The seconds of a mean batch. What overlaps is taken to overlap completely."""
    traffic, block = block_traffic(work, memory), memory.block_rows
    listed = listed_rows(work, work.mean.union, block)
    values = GEOMETRY_WIDTH + work.appearance
    drawing_s = work.batch_size * rates.batch_view_s + rates.batch_row_s * work.mean.visible
    looking_s = listed / rates.cull_rows + (work.batch_size - 1) * listed / rates.cull_more_rows
    moved = (_LOOKED * values + _FITTED) * listed + (_WAKE + UPDATE) * values * work.mean.union
    device_s = drawing_s + looking_s + rates.batch_s + moved / rates.device_adam
    link_s = traffic.loaded * block * row_bytes(work) / rates.both
    record = record_bytes(work, block)
    drive_s = traffic.read * record * (1.0 / drive.read + 1.0 / drive.write)
    batch_s = max(device_s, link_s, drive_s)
    return BlockSpeed(work.batch_size / batch_s, device_s, link_s, drive_s, traffic)
