# SPDX-License-Identifier: Apache-2.0
"""Blocks on the way between disk, places in host memory, and slots."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from gs_pinned.block_arena import BlockArena, Transfer
from gs_pinned.block_saving import Saving
from gs_pinned.block_slots import BlockSlots
from gs_pinned.block_states import NOBODY, BlockStates
from gs_pinned.block_store import BlockStore
from gs_pinned.transfer import raise_faults

__all__ = ["BlockTraffic"]

Ints = NDArray[np.int64]

_MOST_SPARE = 256
_CLEAN_SHARE = 8
"""Of so many places one is left to blocks that need no writing, for reads to take at once."""


class BlockTraffic:
    """Moves blocks as far as there is room, and waits for nothing unless asked to.

    A read never takes the last `spare` free places: blocks that leave slots always find one, or
    will once writes have ended, so that no two wait for each other.

    Args:
        slots, arena, states: of a cache.

    Attributes:
        counts: see `CacheStats`.
        is_whole: False in the middle of a change, and for ever where a change was interrupted.
        step: that errors of writes name.
        saving: the snapshot that is being made.
    """

    def __init__(self, slots: BlockSlots, arena: BlockArena, states: BlockStates) -> None:
        self._slots = slots
        self._arena = arena
        self._states = states
        self._under_way: list[Transfer] = []
        n_slots, n_places = len(states.in_slot), len(states.in_place)
        self._spare = max(1, min(n_places // 8, _MOST_SPARE))
        n_blocks = int((states.counts != NOBODY).sum())
        self._has_room_for_all = n_blocks <= n_slots + n_places - self._spare
        self.counts: Counter[str] = Counter()
        self.is_whole = True
        self.step = 0
        self.saving: Saving | None = None
        self._failures: list[Exception] = []
        self._n_noted = 0  # moves that had passed at the last `take_note`

    # ------------------------------------------------------------------ changes

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Amid a change of the states; for ever where the change does not come to its end."""
        was_whole, self.is_whole = self.is_whole, False
        yield
        self.is_whole = was_whole

    def _begun(self, transfers: Iterator[Transfer]) -> Iterator[Transfer]:
        """Transfers as they begin, amid a change: of one that is interrupted before the states
        tell of it, nobody can say whether its places are in use."""
        self.is_whole = False
        try:
            yield from transfers
        except Exception:  # of a transfer that did not begin
            self.is_whole = True
            raise
        self.is_whole = True

    # ------------------------------------------------------------------ what has ended

    def settle(self) -> None:
        """Take note of transfers that have ended.

        Raises:
            OSError, StoreCorruptError, ...: the first failure that nobody was told of yet, but for
                those of a snapshot, whose ticket tells. A block that was not read is on disk alone
                as before; a block that was not written is newer than on disk.
        """
        self.take_note()
        if self._failures:
            failures, self._failures = self._failures, []
            raise failures[0]

    def take_note(self) -> None:
        """`settle`, and leave failures to the next one."""
        ended = [(one, _failure(one)) for one in self._under_way if one.ticket.is_done]
        self._n_noted = self._slots.n_passed
        if not ended and self.saving is None:
            return
        with self._changing():
            for one, error in ended:
                self._end(one, error is not None)
                self._under_way.remove(one)
                is_saved = self.saving is not None and self.saving.note(one, error)
                if error is not None and not is_saved:
                    self._failures.append(error)
            if self.saving is not None and self.saving.has_ended:
                self.saving = None

    def _end(self, one: Transfer, has_failed: bool) -> None:
        states, blocks = self._states, one.blocks
        if one.is_write:
            states.n_written[blocks] -= 1
            states.is_held[one.places] = False
            states.is_newer[blocks] |= has_failed
        else:
            states.is_read[blocks] = False
            if has_failed:
                states.leave_places(blocks)
        if not has_failed:
            self.counts["written" if one.is_write else "read"] += len(blocks)

    @property
    def awaits_drive(self) -> bool:
        """Whether `wait` would wait for the drive, and not for moves between slots and places."""
        if self._under_way:
            return True
        is_saving = self.saving is not None and self.saving.has_begun
        return is_saving and self._n_noted >= self._slots.n_moves

    def wait(self) -> bool:
        """Wait for what ends next; False: nothing is under way."""
        end = self.next_end()
        if end is not None:
            end()
        return end is not None

    def next_end(self) -> Callable[[], object] | None:
        """What waits for what ends next, and may do so while others call; None: nothing is under
        way."""
        reads = [one for one in self._under_way if not one.is_write]
        if transfers := reads or self._under_way:
            return functools.partial(_failure, transfers[0])  # which `settle` raises
        # One that has passed since the last note counts: it may have made room that nobody saw.
        if self._n_noted < self._slots.n_moves:
            return functools.partial(self._slots.wait, self._slots.n_moves)
        if self.saving is not None and self.saving.has_begun:
            return self.saving.join
        return None

    # ------------------------------------------------------------------ disk

    def read(self, blocks: Ints) -> int:
        """Begin to read blocks that are on disk alone.

        A block that nobody wants makes room only for blocks that are used sooner.

        Args:
            blocks: in the order in which they are needed.

        Returns:
            How many, from the first on.
        """
        if not len(blocks):
            return 0
        states, n_passed = self._states, self._slots.n_passed
        n_free = self._room_for_reads(n_passed)
        if n_free < len(blocks):
            need = np.where(states.is_wanted[blocks], -1, states.next_use[blocks])
            # Places of the first blocks are free; where too few are spare, these come before all.
            need = np.concatenate([np.full(max(-n_free, 0), -1), need[max(n_free, 0) :]])
            dropped = states.farthest(states.droppable(n_passed), len(need))
            dropped = dropped[np.argsort(-states.next_use[dropped], kind="stable")]
            is_later = states.next_use[dropped] > need[: len(dropped)]
            self._drop(dropped[np.logical_and.accumulate(is_later)])
            n_free = self._room_for_reads(n_passed)
        places = states.free_places(n_passed)
        n = min(max(n_free, 0), len(blocks))
        for one in self._begun(self._arena.read(blocks[:n], places[:n])):
            states.take_places(one.blocks, one.places)
            states.is_read[one.blocks] = True
            self._under_way.append(one)
        return n

    def _room_for_reads(self, n_passed: int) -> int:
        """Free places for the host beside those that are spare; negative where these are fewer."""
        states = self._states
        n_beside = len(states.free_places()) - self._spare
        return min(len(states.free_places(n_passed)), n_beside)

    def write_back(self, n_wanted: int = 0) -> int:
        """Begin to write blocks of host memory that are newer than on disk, those first whose next
        use is farthest: as many as leave an eighth of the places to blocks that need no writing. A
        block that is written earlier may change again before it makes room, and is written twice.
        None while a snapshot is being made.

        Args:
            n_wanted: have so many under way in any case.

        Returns:
            How many began.
        """
        states = self._states
        if self.saving is not None:
            return 0
        n_newer = 0 if self._has_room_for_all else int(states.is_newer[states.in_memory()].sum())
        n_places = len(states.in_place)
        n = n_newer - (n_places - n_places // _CLEAN_SHARE)
        if n_wanted:
            n = max(n, n_wanted - sum(len(one.blocks) for one in self._under_way if one.is_write))
        if n <= 0:  # to look at each place takes longer than the rest of a call
            return 0
        chosen = states.farthest(states.writable(self._slots.n_passed), n)
        self._write(chosen, states.place[chosen])
        return len(chosen)

    def _write(self, blocks: Ints, places: Ints) -> None:
        states = self._states
        transfers = self._arena.write(blocks, places, states.counts[blocks], self.step)
        for one in self._begun(transfers):
            states.n_written[one.blocks] += 1
            states.is_held[one.places] = True
            states.is_newer[one.blocks] = False
            self._under_way.append(one)

    def write_all(self) -> bool:
        """Begin to write whatever is newer than on disk, from slots by copies.

        Returns:
            Whether nothing is left to begin; else there is no place for a copy.
        """
        states, slots = self._states, self._slots
        slots.wait(slots.n_moves)
        self._write(blocks := states.writable(slots.n_passed), states.place[blocks])
        while len(blocks := states.newer_in_slots()):
            if not len(places := states.free_places()):
                self._drop(states.farthest(states.droppable(), self._spare))
                places = states.free_places()
            if not len(places):
                return False
            n = min(len(blocks), len(places))
            self._copy_out(blocks[:n], places[:n])
        return True

    def save(self, store: BlockStore, state: bytes, keep: int) -> Saving:
        """Make a snapshot once the writes have ended that are under way."""
        writes = [one for one in self._under_way if one.is_write]
        with self._changing():  # a thread that nobody knows would see later writes
            self.saving = saving = Saving(store, state, keep, writes)
        return saving

    def _copy_out(self, blocks: Ints, places: Ints) -> None:
        states, slots = self._states, self._slots
        raise_faults()
        with self._changing():
            slots.copy_out(self._arena.tables, states.slot[blocks], places)
            states.move[places] = slots.n_moves
        slots.wait(slots.n_moves)
        self._write(blocks, places)

    # ------------------------------------------------------------------ slots

    def load(self, blocks: Ints) -> int:
        """Move blocks of host memory into slots that are free, or whose blocks nobody wants.

        Args:
            blocks: in the order in which they are needed.

        Returns:
            How many, from the first on.
        """
        if not len(blocks):
            return 0
        states = self._states
        free = states.free_slots()[: len(blocks)]
        leaving = states.farthest(states.idle(), len(blocks) - len(free))
        lost = self._without_place(leaving)
        self._drop(lost[states.slot[lost] == NOBODY])
        lost = lost[states.slot[lost] != NOBODY]
        places = states.free_places()
        stored = leaving[~np.isin(leaving, lost)][: len(places)]
        loaded = blocks[: len(free) + len(lost) + len(stored)]
        if not len(loaded):
            return 0
        places, sources = places[: len(stored)], states.place[loaded]
        raise_faults()  # of others, which a move would raise amid the change
        with self._changing():
            at = np.concatenate([free, states.leave_slots(lost), states.leave_slots(stored)])
            self._slots.exchange(self._arena.tables, places, sources, at)
            states.take_places(stored, places)
            states.move[places] = self._slots.n_moves
            states.load(loaded, at, self._slots.n_moves)
        self.counts["loaded"] += len(loaded)
        self.counts["evicted"] += len(stored)
        self.counts["dropped"] += len(lost)
        return len(loaded)

    def _without_place(self, leaving: Ints) -> Ints:
        """Blocks, leaving or in host memory, that the disk has and that give way to the others."""
        states = self._states
        short = len(leaving) - len(states.free_places())
        if short <= 0:
            return leaving[:0]
        is_on_disk = ~states.is_newer[leaving] & (states.n_written[leaving] == 0)
        may_go = np.concatenate([leaving[is_on_disk], states.droppable()])
        return states.farthest(may_go, short)

    def _drop(self, blocks: Ints) -> None:
        """Forget blocks of host memory that the disk has."""
        with self._changing():
            self._states.leave_places(blocks)
        self.counts["dropped"] += len(blocks)


def _failure(one: Transfer) -> Exception | None:
    """Why a transfer failed, once it has ended."""
    try:
        one.ticket.wait()
    except Exception as error:
        return error
    return None
