# SPDX-License-Identifier: Apache-2.0
"""A snapshot of a cache that is being made while its blocks are used again."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from gs_pinned.block_arena import Transfer
from gs_pinned.block_store import BlockStore

__all__ = ["Saving"]


class Saving:
    """Waits for writes, then makes a snapshot of the store on a thread of its own.

    Until the end no block may be written that changed later: it would be in the snapshot.

    Args:
        store: of the cache.
        state, keep: of the snapshot.
        writes: that the snapshot must hold.
    """

    def __init__(
        self, store: BlockStore, state: bytes, keep: int, writes: Iterable[Transfer]
    ) -> None:
        self._store = store
        self._state, self._keep = state, keep
        self._writes = set(writes)
        self._thread: threading.Thread | None = None
        self._number: int | None = None
        self._error: Exception | None = None
        self._go_on()

    @property
    def has_ended(self) -> bool:
        """Whether the snapshot was made, or failed."""
        return self._number is not None or self._error is not None

    def number(self) -> int:
        """The snapshot's number, at the end. Raises what it failed with."""
        if self._error is not None:
            raise self._error
        assert self._number is not None
        return self._number

    @property
    def has_begun(self) -> bool:
        """Whether the thread is at work, or the end has come: an interrupt may keep both away."""
        return self._thread is not None or self.has_ended

    def note(self, one: Transfer, error: Exception | None) -> bool:
        """A transfer has ended; whether it is one of the snapshot's."""
        if one not in self._writes:
            return False
        self._writes.remove(one)
        self._error = self._error or error
        self._go_on()
        return True

    def join(self) -> None:
        """Wait for the thread, where there is one."""
        if self._thread is not None:
            self._thread.join()

    def _go_on(self) -> None:
        if self._writes or self._error is not None:
            return
        thread = threading.Thread(target=self._make, name="snapshot of blocks")
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            self._error = error
        else:
            self._thread = thread

    def _make(self) -> None:
        try:
            self._number = self._store.snapshot(self._state, keep=self._keep)
        except Exception as error:
            self._error = error
