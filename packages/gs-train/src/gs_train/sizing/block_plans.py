# SPDX-License-Identifier: Apache-2.0
"""What a run whose rows lie in blocks takes of memory and of the drive, and what it moves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.options.presets import preset_named
from gs_train.sizes import format_bytes
from gs_train.sizing.blocks import block_room
from gs_train.sizing.drive_rates import DriveRates
from gs_train.sizing.forecasts.block_bytes import (
    BlockMemory,
    block_need,
    drive_bytes,
    n_blocks,
    record_bytes,
)
from gs_train.sizing.forecasts.block_speed import (
    BlockSpeed,
    BlockTraffic,
    block_speed,
    block_traffic,
)
from gs_train.sizing.memory import MOST_ROWS, Caps, Need, largest
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload
from gs_train.tide.block_room import BlockRoom


@dataclass(frozen=True)
class BlockPlan:
    """A run with rows in blocks, before it begins.

    Attributes:
        work: what its batches see.
        room: what memory has room for.
        need: bytes of memory by part.
        traffic: blocks that a mean batch moves.
        drive_bytes: of the records of all rows, once each row has been trained.
        snapshot_bytes: of older records that the snapshots of kept checkpoints need, at most.
    """

    work: Workload
    room: BlockRoom
    need: Need
    traffic: BlockTraffic
    drive_bytes: int
    snapshot_bytes: int

    @property
    def memory(self) -> BlockMemory:
        """Blocks that memory has room for."""
        return _memory(self.room)

    @property
    def n_blocks(self) -> int:
        """Of all rows."""
        return n_blocks(self.work, self.room.block_rows)

    @property
    def record_bytes(self) -> int:
        """Of a full block on the drive."""
        return record_bytes(self.work, self.room.block_rows)

    @property
    def bytes_read(self) -> float:
        """That a mean batch reads from the drive."""
        return self.traffic.read * self.record_bytes

    @property
    def bytes_written(self) -> float:
        """That a mean batch writes to the drive."""
        return self.traffic.written * self.record_bytes

    @property
    def views_whole(self) -> bool:
        """Whether the device has room for all rows of any view at once."""
        return self.work.most.largest <= self.room.batch_rows

    @property
    def needs_drive(self) -> bool:
        """Whether a batch waits for the drive."""
        return self.traffic.read > 0

    def speed(self, rates: Rates, drive: DriveRates | None) -> BlockSpeed | None:
        """Of a mean batch; None where it needs a drive whose rates nobody knows."""
        return block_speed(self.work, rates, self.memory, drive)


def plan_blocks(
    config: FitConfig, work: Workload, caps: Caps, *, block_rows: int, room: BlockRoom | None = None
) -> BlockPlan:
    """The plan of a run with these options.

    Args:
        config: the run's options.
        work: what batches see, and the photographs that are in memory.
        block_rows: of the store.
        room: that the run has been given; None: what `block_room` gives it.

    Raises:
        InputError: there is no room for the blocks that a run needs at least.
    """
    if room is None:
        room = block_room(
            config, work.n_rows, caps, block_rows=block_rows, photographs=work.image_cache
        )
    memory = _memory(room)
    traffic = block_traffic(work, memory)
    every = min(config.checkpoint_every or config.steps, config.steps)
    older = config.keep_checkpoints * traffic.distinct(every)
    return BlockPlan(
        work,
        room,
        block_need(preset_named("tide"), _in_passes(work, room), memory, n_steps=config.steps),
        traffic,
        drive_bytes(work, block_rows),
        math.ceil(older * record_bytes(work, block_rows)),
    )


def problem_of(plan: BlockPlan, caps: Caps, free: int | None) -> str | None:
    """Why a run does not fit; None where it does.

    Args:
        free: bytes of the drive; None where nobody knows.
    """
    if not caps.hold(plan.need):
        device, host = caps.taken(plan.need.device_bytes), caps.taken_of_host(plan.need)
        return (
            f"{format_bytes(device)} of the device and {format_bytes(host)} of host memory are "
            f"needed, of {format_bytes(caps.device)} and {format_bytes(caps.host)}"
        )
    if free is not None and plan.drive_bytes + plan.snapshot_bytes > free:
        return (
            f"the drive must have {format_bytes(plan.drive_bytes + plan.snapshot_bytes)} free, "
            f"for Gaussians and snapshots, got {format_bytes(free)}"
        )
    return None


def largest_on_drive(
    config: FitConfig, work: Workload, caps: Caps, *, block_rows: int, free: int | None
) -> int:
    """The largest N that device, host and drive hold when views see the share of it that they do
    now; 0 where a single row does not fit.

    Args:
        free: bytes of the drive; None where nobody knows.
    """

    def fits(n: int) -> bool:
        try:
            plan = plan_blocks(config, work.of_cloud(n), caps, block_rows=block_rows)
        except InputError:
            return False
        return problem_of(plan, caps, free) is None

    return largest(1, MOST_ROWS, fits) if fits(1) else 0


def _memory(room: BlockRoom) -> BlockMemory:
    return BlockMemory(room.slots, room.places, room.block_rows)


def _in_passes(work: Workload, room: BlockRoom) -> Workload:
    """What is in memory at once of a batch that sees more rows than there is room for."""
    most = work.most
    if not most.union:
        return work
    union, view = (min(rows, float(room.batch_rows)) for rows in (most.union, most.largest))
    drawn = most.intersections * (view / most.largest if most.largest else 1.0)
    return replace(work, most=replace(most, union=union, largest=view, intersections=drawn))
