# SPDX-License-Identifier: Apache-2.0
"""Rows in blocks on a drive: how many of the blocks are in memory, and the bytes of these."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.rows.attributes import GEOMETRY_WIDTH, appearance_width
from gs_train.sizes import format_bytes
from gs_train.sizing.memory import Caps

LEAST_SLOTS, LEAST_PLACES = 1, 2

_OF_DEVICE = 0.5
"""Of the device, for slots: the rest is for drawing, and for copies of the rows of a batch."""

_OF_HOST = 0.8
"""Of the host's memory that is left beside the process, photographs and slots, for places."""

_LOOKS_BYTES = 2 << 30
"""Of slots, and of places, where nothing is trained."""

_OF_A_BLOCK = 200
"""Bytes of host memory for each block, wherever the block is: box, index, states and hints."""


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
    """

    slots: int
    places: int
    block_rows: int
    row_bytes: int
    n_rows: int

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
        return self.places * self.block_bytes + _OF_A_BLOCK * n_blocks(self.n_rows, self.block_rows)

    @property
    def drive_bytes(self) -> int:
        """Of the records of all rows once each has been trained; before, and beside what older
        snapshots need, records are smaller and others more."""
        return self.n_rows * self.row_bytes

    def for_looks(self) -> BlockRoom:
        """Less memory, for looking at the rows beside whoever trains them."""
        slots = max(LEAST_SLOTS, min(self.slots, _LOOKS_BYTES // self.block_bytes))
        places = max(LEAST_PLACES, min(self.places, _LOOKS_BYTES // self.block_bytes))
        return replace(self, slots=slots, places=places)

    def to_plain(self) -> dict[str, Any]:
        """For a plan and for metrics.json."""
        return {
            "slots": self.slots,
            "places": self.places,
            "block_rows": self.block_rows,
            "device_bytes": self.device_bytes,
            "host_bytes": self.host_bytes,
            "drive_bytes": self.drive_bytes,
        }


def n_blocks(n_rows: int, block_rows: int) -> int:
    """As few as hold the rows."""
    return -(-n_rows // block_rows)


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
    taken = caps.process + photographs + _OF_A_BLOCK * n
    if caps.shared:
        taken += slots * each
    places = _places(config, caps, each, n, taken)
    return BlockRoom(slots, places, block_rows, row_bytes, n_rows)


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
            left = max(0, caps.host - taken)
            raise InputError(
                f"--tide.arena must be at most {format_bytes(left)}, which --host-memory "
                f"{format_bytes(caps.host)} leaves beside the rest, got {config.tide.arena}"
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
