# SPDX-License-Identifier: Apache-2.0
"""How many of the blocks of rows on a drive are in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.sizes import format_bytes
from gs_train.sizing.memory import Caps
from gs_train.tide.block_room import (
    LEAST_PLACES,
    LEAST_SLOTS,
    OF_A_BLOCK,
    BlockRoom,
    n_blocks,
    stored_row_bytes,
)
from gs_train.tide.room import ROW_BYTES

_OF_DEVICE = 0.5
"""Of the device, for slots: the rest is for drawing, and for copies of the rows of a batch."""

_OF_REST = 0.5
"""Of what slots leave of the device, for the rows of a batch: the rest is for drawing."""

_OF_HOST = 0.8
"""Of the host's memory that is left beside the process, photographs and slots, for places."""


_MOST_MIB = 1 << 30
"""Of any device."""


def block_room(
    config: FitConfig, n_rows: int, caps: Caps, *, block_rows: int, photographs: int = 0
) -> BlockRoom:
    """The room that the options give, or else a part of what the caps leave.

    Args:
        config: ``tide`` of it, and the degree of its harmonics.
        n_rows: of the scene.
        caps: of a run, or of what looks at one.
        block_rows: of the store.
        photographs: bytes of host memory that decoded photographs will take.

    Raises:
        InputError: the caps, or the options, leave no room for the blocks that a run needs at
            least. Says the smallest that works.
    """
    row_bytes = stored_row_bytes(config.sh_degree)
    each = block_rows * row_bytes
    n = n_blocks(n_rows, block_rows)
    slots = _slots(config, caps, each, n)
    taken = caps.process + photographs + OF_A_BLOCK * n
    if caps.shared:
        taken += slots * each
    places = _places(config, caps, each, n, taken)
    left = int(caps.device / caps.gaps) - slots * each
    if caps.shared:
        left = min(left, caps.host - taken - places * each)
    batch_rows = max(1, int(_OF_REST * left) // ROW_BYTES)

    def device_for(batch_rows: int) -> int | None:
        def has_room(mib: int) -> bool:
            larger = replace(caps, device=mib << 20)
            try:
                room = block_room(
                    config, n_rows, larger, block_rows=block_rows, photographs=photographs
                )
            except InputError:  # what more slots take of the host
                return False
            return room.batch_rows >= batch_rows

        return _least_device(caps.device >> 20, has_room)

    return BlockRoom(
        slots, places, block_rows, row_bytes, n_rows, batch_rows, caps.device, device_for
    )


def _least_device(mib: int, has_room: Callable[[int], bool]) -> int | None:
    """Bytes of a device that has room, of more than so many MiB and in whole ones; None: none has,
    because the host is short."""
    low, high = mib, mib + 1
    while not has_room(high):
        low, high = high, 2 * high
        if high > _MOST_MIB:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if has_room(middle) else (middle, high)
    return high << 20


def _slots(config: FitConfig, caps: Caps, each: int, n: int) -> int:
    share = _OF_DEVICE / (2 if caps.shared else 1)
    given = config.tide.slots
    if given is not None:
        most = int(caps.device / caps.gaps) // each
        if min(given, n) > most:
            raise InputError(
                f"--tide.slots must be at most {most:,}, of {format_bytes(each)} each, for "
                f"--device-memory {format_bytes(caps.device)} to hold them, got {given:,}"
            )
        return min(given, max(n, LEAST_SLOTS))
    fits = int(share * caps.device) // each
    if fits < LEAST_SLOTS:
        raise InputError(
            f"--device-memory must be at least {_mib(int(LEAST_SLOTS * each / share) + 1)} for "
            f"--offload tide, got {format_bytes(caps.device)}"
        )
    return min(fits, max(n, LEAST_SLOTS))


def _places(config: FitConfig, caps: Caps, each: int, n: int, taken: int) -> int:
    most = max(n, LEAST_PLACES)
    given = config.tide.arena_bytes
    if given is not None:
        if given < LEAST_PLACES * each:
            raise InputError(
                f"--tide.arena must be at least {LEAST_PLACES * each:,} bytes, for two blocks of "
                f"--block-rows {each // stored_row_bytes(config.sh_degree)}, got {given:,}"
            )
        places = min(given // each, most)
        if taken + places * each > caps.host:
            raise InputError(
                f"--host-memory must be at least {_mib(taken + places * each)} for --tide.arena "
                f"{config.tide.arena}, got {format_bytes(caps.host)}"
            )
        return places
    fits = int(_OF_HOST * (caps.host - taken)) // each
    if fits < LEAST_PLACES:
        least = taken + int(LEAST_PLACES * each / _OF_HOST) + 1
        raise InputError(
            f"--host-memory must be at least {_mib(least)} for --offload tide, got "
            f"{format_bytes(caps.host)}"
        )
    return min(fits, most)


def _mib(n: int) -> str:
    """Bytes rounded up to whole MiB, as the options take them."""
    return f"{-(-n // 2**20)}MiB"
