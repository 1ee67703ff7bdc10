# SPDX-License-Identifier: Apache-2.0
"""Seconds of a batch whose rows lie in blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gs_train.rows.attributes import GEOMETRY_WIDTH
from gs_train.sizing.drive_rates import DriveRates
from gs_train.sizing.forecasts.batches import FLOAT, UPDATE
from gs_train.sizing.forecasts.block_bytes import (
    BlockMemory,
    listed_blocks,
    listed_rows,
    n_blocks,
    record_bytes,
    row_bytes,
)
from gs_train.sizing.forecasts.next_use import missed_share
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload
from gs_train.tide.foresight import FETCHED

_LOOKED = 16  # bytes of a value that is caught up elsewhere
_FITTED = 3 * 6 * FLOAT + 4  # of a row whose block is fitted
_WAKE = 24
_ROUNDS = 8  # until what comes early fits what is missing
# Of the places of a gs_pinned.BlockCache: the share kept for blocks that come early, and those kept
# free for blocks that leave slots, an eighth at most.
_CLEAN_SHARE, _MOST_SPARE = 1 / 8, 256
_OFTEN = 1e6  # uses in an epoch of which nobody knows how often it uses a block


@dataclass(frozen=True)
class BlockTraffic:
    """Blocks of a mean batch.

    Attributes:
        used: that may hold rows which the batch sees.
        loaded: that come to slots; twice where a batch has to take turns.
        read: that come from the drive; twice where a batch has to take turns in all memory.
        seen: that any view sees.
        together: that are used before others are, in ``n_together`` batches: those of a tile, or of
            a batch of shuffled views.
    """

    used: float
    loaded: float
    read: float
    seen: float
    together: float
    n_together: int

    @property
    def written(self) -> float:
        """Blocks that go to the drive: each that was read is changed once."""
        return min(self.read, self.used)

    def distinct(self, n_batches: int) -> float:
        """Blocks that so many batches use."""
        if not self.seen:
            return 0.0
        n_others = n_batches / self.n_together
        return self.seen * (1.0 - max(0.0, 1.0 - self.together / self.seen) ** n_others)


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

    Blocks that are used next soonest stay, beside those that came early for the steps to come. In
    shuffled order all blocks that any view sees are as likely as each other, in each batch. In
    tiles, a tile's blocks are likely while it lasts: they come once where memory has room for them,
    and stay for other tiles as far as there is more.

    A scene whose blocks are used unequally often moves fewer blocks. A batch that uses a large
    share of the room moves more: see docs/drive.md for how far this is off.
    """
    block, n = memory.block_rows, float(n_blocks(work, memory.block_rows))
    batches = work.epoch_batches

    def blocks(rows: float, by: float) -> float:
        return min(n, listed_blocks(rows, by, block))

    used = blocks(work.mean.union, work.mean.visible / work.batch_size)
    seen = blocks(work.epoch_rows, work.epoch_rows) if work.epoch_rows else n
    seen = max(used, min(seen, used * batches) if batches else seen)
    tile = min(seen, max(used, blocks(work.tile_rows, work.tile_rows)))

    def anew(room: float) -> float:
        if not work.tile_batches:
            return used * missed_share(room / seen, used * batches / seen if batches else _OFTEN)
        once = min(used, tile / work.tile_batches)
        if room < tile:
            return once + (used - once) * missed_share(room / tile, _OFTEN)
        tiles = batches / work.tile_batches
        return once * missed_share((room - tile) / (seen - tile), tiles * tile / seen)

    def missing(room: float, n_ahead: int, most_ahead: float = math.inf) -> float:
        if room >= seen:
            return 0.0
        if room < used:  # in turns, and once more to be updated
            return 2.0 * used - room
        n_missing = 0.0
        for _ in range(_ROUNDS):
            n_missing = anew(max(used, room - min(n_ahead * n_missing, most_ahead)))
        return n_missing

    loaded = missing(memory.slots, 1)
    spare = min(max(1, memory.places // 8), _MOST_SPARE)
    clean = _CLEAN_SHARE * memory.places
    read = missing(memory.slots + memory.places - spare, 1 + FETCHED, clean)
    together = tile if work.tile_batches else used
    return BlockTraffic(used, loaded, read, seen, together, max(1, work.tile_batches))


def block_speed(
    work: Workload, rates: Rates, memory: BlockMemory, drive: DriveRates | None
) -> BlockSpeed | None:
    """The seconds of a mean batch. What overlaps is taken to overlap completely.

    Args:
        drive: None where nobody knows its rates.

    Returns:
        None where the batch needs a drive whose rates nobody knows.
    """
    traffic, block = block_traffic(work, memory), memory.block_rows
    listed = listed_rows(work, work.mean.union, block)
    values = GEOMETRY_WIDTH + work.appearance
    drawing_s = work.batch_size * rates.batch_view_s + rates.batch_row_s * work.mean.visible
    looking_s = listed / rates.cull_rows + (work.batch_size - 1) * listed / rates.cull_more_rows
    moved = (_LOOKED * values + _FITTED) * listed + (_WAKE + UPDATE) * values * work.mean.union
    device_s = drawing_s + looking_s + rates.batch_s + moved / rates.device_adam
    link_s = traffic.loaded * block * row_bytes(work) / rates.both
    record = record_bytes(work, block)
    if drive is None and traffic.read:
        return None
    drive_s = 0.0
    if drive is not None:
        drive_s = record * (traffic.read / drive.read + traffic.written / drive.write)
    batch_s = max(device_s, link_s, drive_s)
    return BlockSpeed(work.batch_size / batch_s, device_s, link_s, drive_s, traffic)
