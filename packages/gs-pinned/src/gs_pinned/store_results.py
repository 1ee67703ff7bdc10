# SPDX-License-Identifier: Apache-2.0
"""What a block store's calls return: tickets, sizes, the result of a check."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from gs_pinned import _core
from gs_pinned.counts import limit_of
from gs_pinned.errors import ForkedError

__all__ = ["BlockTicket", "StoreCheck", "StoreStats"]


@dataclass(frozen=True)
class StoreStats:
    """Size of a store, and what this object has read and written.

    ``live_bytes`` hold the present rows, ``dead_bytes`` rows that only a snapshot needs, and
    ``free_bytes`` nothing; ``disk_bytes`` is the size of all segments.
    """

    blocks: int
    rows: int
    live_bytes: int
    dead_bytes: int
    free_bytes: int
    disk_bytes: int
    records_read: int
    bytes_read: int
    records_written: int
    bytes_written: int


@dataclass(frozen=True)
class StoreCheck:
    """What :meth:`BlockStore.verify` found: ``problems`` holds one line for each damaged block."""

    blocks: int
    rows: int
    problems: tuple[str, ...]

    @property
    def is_intact(self) -> bool:
        return not self.problems


class BlockTicket:
    """A read or write that may not be done. Dropping the ticket waits for the end."""

    def __init__(self, pending: _core.PendingBlocks, result: dict[str, NDArray[Any]]) -> None:
        self._pending = pending
        self._result = result
        self._process = os.getpid()

    @property
    def is_done(self) -> bool:
        return self._usable().is_done

    def wait(self, timeout_s: float | None = None) -> dict[str, NDArray[Any]]:
        """Wait for the end; return the rows of a read, and an empty dict of a write.

        Raises:
            TimeoutError: not done in time.
            OSError, StoreCorruptError: the first failure of the call.
        """
        if not self._usable().wait(limit_of(timeout_s)):
            raise TimeoutError("the blocks were not there in time")
        return self._result

    def _usable(self) -> _core.PendingBlocks:
        if os.getpid() != self._process:
            raise ForkedError("a ticket must be used in the process that got it, got a child")
        return self._pending
