# SPDX-License-Identifier: Apache-2.0
"""Blocks of a store that are in a device's memory, in host memory, or on disk alone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from gs_pinned.block_arena import BlockArena
from gs_pinned.block_saving import Saving
from gs_pinned.block_slots import BlockSlots
from gs_pinned.block_states import NOBODY, UNKNOWN, BlockStates
from gs_pinned.block_store import BlockStore
from gs_pinned.block_traffic import BlockTraffic
from gs_pinned.counts import shown, whole_array, whole_number
from gs_pinned.errors import ClosedError, ForkedError, StoreReadOnlyError
from gs_pinned.plane import block_array

__all__ = ["BlockCache", "CacheStats", "SnapshotTicket"]

_AT_ONCE = 32
"""Blocks that are written where nothing else makes room."""


@dataclass(frozen=True)
class CacheStats:
    """What a cache has done since it was made, in blocks.

    Of the blocks that :meth:`BlockCache.bring` was asked for, ``hits`` were in slots and ``late``
    were not in memory. ``loaded`` went from host memory to slots, ``evicted`` the other way.
    ``read`` and ``written`` count the disk, ``dropped`` blocks left memory. ``waited_s`` are the
    seconds that `bring` waited for the disk: for blocks that it read, or for room that writes make.
    """

    hits: int = 0
    late: int = 0
    loaded: int = 0
    evicted: int = 0
    read: int = 0
    written: int = 0
    dropped: int = 0
    waited_s: float = 0.0


class SnapshotTicket:
    """A snapshot that may not be made yet."""

    def __init__(self, cache: BlockCache, saving: Saving) -> None:
        self._cache = cache
        self._saving = saving

    @property
    def is_done(self) -> bool:
        """Whether the snapshot was made, or failed."""
        self._cache._take_note()
        return self._saving.has_ended

    def wait(self) -> int:
        """Wait for the end; return the snapshot's number.

        Raises:
            OSError, StoreReadOnlyError: what the snapshot failed with.
            RuntimeError: a call of the cache was interrupted, and the snapshot with it.
        """
        while not self.is_done:
            if not (self._cache._wait() or self._saving.has_ended):
                raise RuntimeError("the snapshot was interrupted before it began to be made")
        return self._saving.number()


class BlockCache:
    """Blocks of a :class:`BlockStore`, brought into arrays of a device by way of host memory.

    The arrays have slots, each of which holds a block while the caller works with its rows. A
    block that has to give up its slot goes to a place in page-locked host memory, and from there
    to the disk. A block is in a slot, in a place or on disk alone, so slots and places together
    hold that many blocks. Which blocks stay is decided by the next uses that the caller knows
    (:meth:`hint`); without hints those go that were not used for longest. Hints and the sizes of
    the tiers change no value.

    Args:
        store: holds every block that will be asked for. No other object may write the store.
        arrays: for each plane of the store an array (slots * ``block_rows``, width) in C order,
            numpy's or torch's, all on one device. Block ``b`` in slot ``s`` has its rows from
            ``s * block_rows`` on; behind a block's last row lies anything.
        host_blocks: places in host memory, at least 2.
        stream: that blocks move on; None for torch's current one, and for arrays on the CPU.
        pinned: as for :class:`Table`.

    Attributes:
        waiting: makes what is entered while :meth:`bring` waits for the disk, such as a span of a
            trace; nothing unless the caller sets it.

    Raises:
        TypeError, ValueError: arrays that do not fit the planes; a plane of a dtype that no
            :class:`Table` has.
        MemoryError: no memory for the places.

    Asynchrony: :meth:`bring`, :meth:`expect` and :meth:`snapshot` enqueue moves on ``stream``, and
        return before the moves have passed. Make ``stream`` wait for work that uses released blocks
        before these calls, and make work that uses blocks wait for ``stream`` after.
    Threads: one call at a time, others wait.

    >>> import tempfile
    >>> from gs_pinned import BlockStore, Plane
    >>> folder = tempfile.TemporaryDirectory()
    >>> store = BlockStore.create(folder.name, [Plane("w", 1)], block_rows=2)
    >>> store.write([0, 1, 2], {"w": np.arange(6, dtype="f4")[:, None]})
    >>> w = np.zeros((2 * 2, 1), "f4")  # two slots
    >>> with BlockCache(store, {"w": w}, host_blocks=2) as cache:
    ...     for block in (0, 1, 2):
    ...         (slot,) = cache.bring([block])
    ...         w[2 * slot : 2 * slot + 2] += 10.0
    ...         cache.release([block])
    ...     cache.snapshot()
    1
    >>> store.read([2, 0])["w"].ravel()
    array([14., 15., 10., 11.], dtype=float32)
    """

    def __init__(
        self,
        store: BlockStore,
        arrays: Mapping[str, Any],
        *,
        host_blocks: int,
        stream: Any = None,
        pinned: Literal["auto"] | bool = "auto",
    ) -> None:
        n_places = whole_number(host_blocks, "host_blocks", least=2)
        slots = BlockSlots(store.planes, arrays, store.block_rows, stream)
        blocks = store.blocks
        self._store = store
        self._states = BlockStates(blocks, store.counts(blocks), slots.n_slots, n_places)
        self._arena: BlockArena | None = BlockArena(store, n_places, pinned)
        slots.check(self._arena.tables)
        self._traffic = BlockTraffic(slots, self._arena, self._states)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._n_calls = 0
        self._waited_s = 0.0
        self.waiting: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def n_slots(self) -> int:
        """Blocks that the arrays hold."""
        return len(self._states.in_slot)

    @property
    def host_blocks(self) -> int:
        """Blocks that host memory holds."""
        return len(self._states.in_place)

    @property
    def stats(self) -> CacheStats:
        return CacheStats(**self._traffic.counts, waited_s=self._waited_s)

    def counts(self, blocks: Iterable[int]) -> NDArray[np.int64]:
        """(n,) rows of each block."""
        counts: NDArray[np.int64] = self._states.counts[self._numbers(blocks)]
        return counts

    def hint(self, blocks: Iterable[int], next_use: Iterable[int]) -> None:
        """Say when blocks will be used next.

        Args:
            blocks: different numbers.
            next_use: of each, any count that grows with time, below 2^31 - 1. A hint holds until
                the block is brought or another hint comes.
        """
        numbers = self._numbers(blocks)
        times = whole_array(next_use, "next_use", most=UNKNOWN - 1)
        if len(times) != len(numbers):
            raise ValueError(f"next_use must be {len(numbers)}, one a block, got {len(times)}")
        with self._lock:
            self._need_usable()
            self._states.next_use[numbers] = times

    def fetch(self, blocks: Iterable[int]) -> None:
        """Begin to read blocks into host memory.

        Blocks with a later next use make room, others do not: what finds none is left out.

        Args:
            blocks: different numbers, in the order in which they will be needed.

        Raises:
            As :meth:`bring`, for transfers that began earlier.

        Asynchrony: waits for nothing.
        """
        numbers = self._numbers(blocks)
        with self._lock:
            self._need_usable()
            self._traffic.settle()
            self._traffic.read(self._on_disk(numbers))
            self._traffic.write_back()

    def expect(self, blocks: Iterable[int]) -> None:
        """Begin to bring blocks, as far as slots are free or hold blocks that nobody uses.

        Args:
            blocks: different numbers, of the next :meth:`bring`.

        Raises:
            As :meth:`bring`, for transfers that began earlier.

        Asynchrony: waits for nothing. What is on disk is read now and moved by a later call.
        """
        numbers = self._numbers(blocks)
        with self._lock:
            self._need_usable()
            if not self._are_away(numbers):
                self._traffic.settle()
                self._traffic.write_back()
                return
            try:
                self._states.is_wanted[numbers] = True
                self._traffic.settle()
                self._advance(numbers)
                self._traffic.write_back()
            finally:
                self._states.is_wanted[numbers] = False

    def bring(self, blocks: Iterable[int]) -> NDArray[np.int32]:
        """Bring blocks into slots, where they stay until as many calls of :meth:`release`.

        Args:
            blocks: different numbers.

        Returns:
            (n,) the slot of each block. The rows are there once ``stream`` has passed.

        Raises:
            IndexError: a block that the store does not have.
            ValueError: a block is named twice.
            MemoryError: the slots do not suffice beside blocks in use; no block was brought.
            OSError, StoreCorruptError: the drive errs or a record is damaged, this one or one that
                an earlier call began with. No block was brought; the call can be made again.

        Asynchrony: waits until the blocks are in memory.
        Cost: one move over the link for each block that is not in a slot, and one back for the
            block whose slot it takes; reads and writes of the disk where memory does not suffice.
        """
        numbers = self._numbers(blocks)
        with self._lock:
            self._need_usable()
            states, counts = self._states, self._traffic.counts
            in_slots = len(numbers) - int(np.count_nonzero(states.slot[numbers] == NOBODY))
            n_late = 0
            if in_slots == len(numbers):
                self._traffic.settle()
                self._traffic.write_back()
            else:
                n_late = self._bring_those_away(numbers)
            self._n_calls += 1
            counts["hits"] += in_slots
            counts["late"] += n_late
            states.next_use[numbers], states.last_use[numbers] = UNKNOWN, self._n_calls
            states.n_uses[numbers] += 1
            return states.slot[numbers].astype(np.int32)

    def release(
        self,
        blocks: Iterable[int],
        changed: bool | Iterable[bool] = True,
        *,
        step: int = 0,
    ) -> None:
        """End one use of blocks.

        Args:
            blocks: different numbers, in use.
            changed: whether rows of the blocks were written in their slots; for all, or of each.
            step: named in errors of writes to come.

        Raises:
            ValueError: a block that is not in use, another number of marks than of blocks.
            StoreReadOnlyError: a changed block of a store that cannot be written.
        """
        numbers = self._numbers(blocks)
        if not isinstance(changed, np.ndarray) and isinstance(changed, Iterable):
            changed = list(changed)
        marks = np.asarray(changed, bool)
        if marks.ndim and marks.shape != numbers.shape:
            raise ValueError(f"changed must be {len(numbers)}, one a block, got {marks.shape}")
        at_step = whole_number(step, "step", most=0xFFFFFFFF)
        with self._lock:
            self._need_usable()
            states = self._states
            if len(idle := numbers[states.n_uses[numbers] == 0]):
                raise ValueError(f"blocks must be in use, got {idle[0]}")
            if marks.any():
                if self._store.is_read_only:
                    text = "blocks must not change: the store is open for reading"
                    raise StoreReadOnlyError(text)
                states.is_newer[numbers] |= marks
            states.n_uses[numbers] -= 1
            self._traffic.step = at_step

    def snapshot(self, state: bytes = b"", *, keep: int = 1) -> int:
        """Make a snapshot, and wait. See :meth:`snapshot_async`."""
        return self.snapshot_async(state, keep=keep).wait()

    def snapshot_async(self, state: bytes = b"", *, keep: int = 1) -> SnapshotTicket:
        """Begin to write every block that changed, and to make a snapshot of the store as it is
        now; blocks stay where they are and may be used again at once.

        Args:
            state, keep: as for :meth:`BlockStore.snapshot`.

        Returns:
            A ticket whose ``wait()`` returns the snapshot's number.

        Raises:
            RuntimeError: a block is in use, so that its rows may change meanwhile.
            StoreReadOnlyError: the store cannot be written.
            As :meth:`bring`, for transfers that began earlier.
            OSError: by ``wait()``: the system refused; the older snapshots stay, no change is lost.

        Asynchrony: waits for an earlier snapshot, and until changed blocks have been copied from
            slots to places. Until the ticket is done, blocks that change later are not written:
            what finds no room in memory waits.
        """
        if not isinstance(state, bytes):
            raise TypeError(f"state must be bytes, got {type(state).__name__}")
        n_kept = whole_number(keep, "keep", least=1, most=0xFFFFFFFF)
        with self._lock:
            self._need_usable()
            if len(used := np.flatnonzero(self._states.n_uses)):
                raise RuntimeError(f"no block may be in use at a snapshot, got block {used[0]}")
            if self._store.is_read_only:
                raise StoreReadOnlyError("no snapshot can be made: the store is open for reading")
            traffic = self._traffic
            traffic.settle()
            while traffic.saving is not None or not traffic.write_all():
                traffic.wait()
                traffic.settle()
            return SnapshotTicket(self, traffic.save(self._store, state, n_kept))

    def close(self) -> None:
        """Wait for what is under way, and give host memory back. Blocks that changed since the last
        snapshot are lost, as all that was written since. Closing twice is harmless."""
        if os.getpid() != self._process:
            return  # the transfers are the parent's
        with self._lock:
            while self._arena is not None and self._traffic.wait():
                self._traffic.take_note()
            arena, self._arena = self._arena, None
            if arena is not None:
                arena.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._arena is None:
            return "BlockCache(closed)"
        states = self._states
        return (
            f"BlockCache({int((states.in_slot != NOBODY).sum())} of {self.n_slots} slots, "
            f"{int((states.in_place != NOBODY).sum())} of {self.host_blocks} places, "
            f"{int((states.counts != NOBODY).sum())} blocks)"
        )

    # ------------------------------------------------------------------

    def _take_note(self) -> None:
        with self._lock:
            self._traffic.take_note()

    def _wait(self) -> bool:
        with self._lock:
            end = self._traffic.next_end()
        if end is not None:
            end()  # while others may call
        return end is not None

    def _wait_to_bring(self) -> bool:
        """`BlockTraffic.wait`, which counts where it waits for the disk."""
        if not self._traffic.awaits_drive:
            return self._traffic.wait()
        started = time.perf_counter()
        with self.waiting():
            has_waited = self._traffic.wait()
        self._waited_s += time.perf_counter() - started
        return has_waited

    def _bring_those_away(self, numbers: NDArray[np.int64]) -> int:
        """Bring blocks, of which some are not in slots; how many were not in memory."""
        states, traffic = self._states, self._traffic
        try:
            states.is_wanted[numbers] = True
            self._check_room(numbers)
            traffic.settle()
            in_memory = (states.place[numbers] != NOBODY) & ~states.is_read[numbers]
            in_memory |= states.slot[numbers] != NOBODY
            while not self._advance(numbers):
                if n_left := len(self._on_disk(numbers)):  # for which there was no room
                    traffic.write_back(n_left)
                if not (self._wait_to_bring() or traffic.write_back(_AT_ONCE)):
                    raise RuntimeError("blocks cannot be brought: nothing makes room")
                traffic.settle()
            traffic.write_back()
        finally:
            states.is_wanted[numbers] = False
        return len(numbers) - int(np.count_nonzero(in_memory))

    def _are_away(self, numbers: NDArray[np.int64]) -> bool:
        """Whether some of the blocks are not in slots."""
        return bool(np.count_nonzero(self._states.slot[numbers] == NOBODY))

    def _advance(self, numbers: NDArray[np.int64]) -> bool:
        """Move and read as far as possible now; whether all of the blocks are in slots."""
        states, traffic = self._states, self._traffic
        while self._are_away(numbers):
            ready = (states.place[numbers] != NOBODY) & ~states.is_read[numbers]
            if traffic.load(numbers[ready]) + traffic.read(self._on_disk(numbers)) == 0:
                return False
        return True

    def _on_disk(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        states = self._states
        on_disk = (states.slot[numbers] == NOBODY) & (states.place[numbers] == NOBODY)
        return numbers[on_disk]

    def _check_room(self, numbers: NDArray[np.int64]) -> None:
        states = self._states
        in_slots = states.in_slot[states.in_slot != NOBODY]
        n_used = int(((states.n_uses[in_slots] > 0) & ~states.is_wanted[in_slots]).sum())
        if n_used + len(numbers) > self.n_slots:
            raise MemoryError(
                f"blocks must fit the {self.n_slots} slots beside {n_used} in use, "
                f"got {len(numbers)}"
            )

    def _numbers(self, blocks: Iterable[int]) -> NDArray[np.int64]:
        numbers = block_array(blocks)
        counts = self._states.counts
        if not len(numbers):
            return numbers
        is_sorted = np.count_nonzero(numbers[1:] > numbers[:-1]) == len(numbers) - 1
        largest = numbers[-1] if is_sorted else numbers.max()
        if largest >= len(counts) or np.count_nonzero(counts[numbers] == NOBODY):
            unknown = [b for b in numbers if b >= len(counts) or counts[b] == NOBODY]
            raise IndexError(f"blocks must be in the store, got {unknown[0]}")
        if not is_sorted:
            is_named = np.zeros(len(counts), bool)  # sorting takes forty times as long
            is_named[numbers] = True
            if np.count_nonzero(is_named) != len(numbers):
                raise ValueError(f"blocks must be different, got {shown(numbers.tolist())}")
        return numbers

    def _need_usable(self) -> None:
        if os.getpid() != self._process:
            raise ForkedError("a cache must be used in the process that made it, got a child")
        if self._arena is None:
            raise ClosedError("the cache must be open, got one that was closed")
        if not self._traffic.is_whole:
            raise RuntimeError(
                "a call was interrupted amid a change, so the cache no longer knows where blocks "
                "are; open the store at its last snapshot"
            )
