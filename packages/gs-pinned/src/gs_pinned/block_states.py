# SPDX-License-Identifier: Apache-2.0
"""Where each block of a cache is, and which blocks leave first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["NOBODY", "UNKNOWN", "BlockStates"]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

UNKNOWN = (1 << 31) - 1
"""The next use of a block of which nothing was said: later than all others."""
NOBODY = -1
"""In place of a slot, a place or a block."""


class BlockStates:
    """A block is in a slot, or in a place, or on disk alone.

    Args:
        blocks, counts: numbers of the blocks on disk, and their rows.
        n_slots, n_places: of the cache.

    Attributes:
        counts: (N,) rows by block; NOBODY for numbers without a block.
        slot, place: (N,) where a block is.
        is_read: (N,) the block is on its way from disk to its place.
        is_newer: (N,) the disk has an older block, and no write under way has this one.
        n_written: (N,) writes under way.
        n_uses: (N,) uses that were not released; such a block is in a slot.
        is_wanted: (N,) the call at hand wants the block.
        next_use, last_use: (N,) what was said, and the number of the call.
        in_slot, in_place: (slots,), (places,) the block there.
        is_held: (places,) disk or snapshot use what lies there.
        move: (places,) the last move that came by.
    """

    def __init__(
        self, blocks: Sequence[int], counts: Sequence[int], n_slots: int, n_places: int
    ) -> None:
        n = max(blocks, default=-1) + 1
        self.counts = np.full(n, NOBODY, np.int64)
        self.counts[list(blocks)] = counts
        self.slot = np.full(n, NOBODY, np.int64)
        self.place = np.full(n, NOBODY, np.int64)
        self.is_read, self.is_newer, self.is_wanted = np.zeros((3, n), bool)
        self.n_written, self.n_uses, self.last_use = np.zeros((3, n), np.int64)
        self.next_use = np.full(n, UNKNOWN, np.int64)
        self.in_slot = np.full(n_slots, NOBODY, np.int64)
        self.in_place = np.full(n_places, NOBODY, np.int64)
        self.is_held = np.zeros(n_places, bool)
        self.move = np.zeros(n_places, np.int64)

    def farthest(self, blocks: Ints, n: int) -> Ints:
        """At most ``n`` of some blocks, those whose next use is farthest and, of equals, those
        whose last use is longest ago."""
        if n >= len(blocks):
            return blocks
        if n <= 0:
            return blocks[:0]
        late = (self.next_use[blocks] << 32) - self.last_use[blocks]
        return blocks[np.argpartition(late, len(blocks) - n)[len(blocks) - n :]]

    # ------------------------------------------------------------------ slots

    def free_slots(self) -> Ints:
        return np.flatnonzero(self.in_slot == NOBODY)

    def idle(self) -> Ints:
        """Blocks in slots that nobody uses or wants."""
        blocks = self.in_slot[self.in_slot != NOBODY]
        return blocks[(self.n_uses[blocks] == 0) & ~self.is_wanted[blocks]]

    def newer_in_slots(self) -> Ints:
        """Blocks in slots that are newer than on disk."""
        blocks = self.in_slot[self.in_slot != NOBODY]
        return blocks[self.is_newer[blocks]]

    def load(self, blocks: Ints, slots: Ints, move: int) -> None:
        """Blocks go from their places to slots that are free."""
        places = self.place[blocks]
        self.in_place[places], self.move[places] = NOBODY, move
        self.place[blocks] = NOBODY
        self.slot[blocks], self.in_slot[slots] = slots, blocks

    def leave_slots(self, blocks: Ints) -> Ints:
        """The slots of blocks, which are free now."""
        slots = self.slot[blocks]
        self.slot[blocks], self.in_slot[slots] = NOBODY, NOBODY
        return slots

    # ------------------------------------------------------------------ places

    def free_places(self, n_passed: int | None = None) -> Ints:
        """Places for the next move or, where the moves that have passed are given, for the host."""
        is_free = (self.in_place == NOBODY) & ~self.is_held
        if n_passed is not None:
            is_free &= self.move <= n_passed
        return np.flatnonzero(is_free)

    def take_places(self, blocks: Ints, places: Ints) -> None:
        self.place[blocks], self.in_place[places] = places, blocks

    def leave_places(self, blocks: Ints) -> None:
        self.in_place[self.place[blocks]] = NOBODY
        self.place[blocks] = NOBODY

    def in_memory(self) -> Ints:
        """Blocks in places, without those on their way there."""
        blocks = self.in_place[self.in_place != NOBODY]
        return blocks[~self.is_read[blocks]]

    def droppable(self, n_passed: int | None = None) -> Ints:
        """Blocks in places that nobody wants and the disk has; see `free_places`."""
        blocks = self.in_memory()
        may = ~self.is_newer[blocks] & (self.n_written[blocks] == 0) & ~self.is_wanted[blocks]
        if n_passed is not None:
            may &= self.move[self.place[blocks]] <= n_passed
        return blocks[may]

    def writable(self, n_passed: int) -> Ints:
        """Blocks in places that are newer than on disk, and complete."""
        blocks = self.in_memory()
        return blocks[self.is_newer[blocks] & (self.move[self.place[blocks]] <= n_passed)]
