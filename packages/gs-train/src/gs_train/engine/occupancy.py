# SPDX-License-Identifier: Apache-2.0
"""Which row is in which slot of a cache, and which batch last wanted it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from gs_train.rows.replacement import Replacement, grown

_NOWHERE = -1
_FREE = -1
"""The batch that last wanted a slot without a row: no batch is as early."""


class Claim(NamedTuple):
    """Slots that rows were given.

    Attributes:
        new: (R,) int32 rows that come.
        slots: (R,) int32 where they come to.
        old: (L,) int32 rows that leave the last L of these slots.
        n_wanted: slots that the batch and those that it came beside want together.
    """

    new: Tensor
    slots: Tensor
    old: Tensor
    n_wanted: int


class Occupancy:
    """N rows, some of them in C slots.

    While all rows have slots, none comes or goes, and nobody notes which batch wanted a row.

    Attributes:
        slot_of: (N,) int32: the slot of each row; below 0 where it has none.
    """

    def __init__(self, n_rows: int, n_slots: int, device: torch.device) -> None:
        def full(length: int, value: int) -> Tensor:
            return torch.full((length,), value, dtype=torch.int32, device=device)

        self.slot_of = full(n_rows, _NOWHERE)
        self._id_of = full(n_slots, _NOWHERE)
        # One more than there are slots: what is written for rows that have none.
        self._wanted = full(n_slots + 1, _FREE)
        self._n_free = n_slots
        self._batch = 0  # the one that runs, counted from 1
        self._home = 0  # the last whose updates are in the host's tables
        self._early: Tensor | None = None  # rows of the next batch, if all of them have slots

    @property
    def n_slots(self) -> int:
        """C."""
        return len(self._id_of)

    @property
    def n_bytes(self) -> int:
        """Bytes of the lists."""
        return self.slot_of.nbytes + self._id_of.nbytes + self._wanted.nbytes

    @property
    def is_complete(self) -> bool:
        """Whether every row has a slot."""
        return self.n_slots - self._n_free == len(self.slot_of)

    def slots(self, ids: Tensor) -> Tensor:
        """(R,) slots of rows."""
        return self.slot_of.index_select(0, ids)

    def begin(self) -> None:
        """The next batch begins: its rows have been claimed."""
        self._batch += 1
        self._early = None

    def has_all_early(self, ids: Tensor) -> bool:
        """Whether these rows were claimed early for the next batch, and all have slots."""
        return ids is self._early

    def claim(self, ids: Tensor, *, is_early: bool) -> Claim:
        """Give slots to rows of the next batch, as far as there are any.

        Slots without a row are given first, then those that no batch has wanted for longest.

        Args:
            ids: (U,) int32, sorted.
            is_early: the present batch still needs its slots. Else rows that came early for other
                views are not in the way.

        Synchronises, unless all rows have slots.
        """
        if self.is_complete:
            self._early = ids
            return Claim(ids[:0], ids[:0], ids[:0], 0)
        if not is_early:
            self._wanted.clamp_(max=self._batch)
        slots = self.slots(ids)
        is_here = slots >= 0
        self._wanted.index_fill_(0, slots.where(is_here, self.n_slots).long(), self._batch + 1)
        wanted = self._wanted[: self.n_slots]
        is_busy = wanted >= self._batch + (not is_early)
        n_here, n_busy = torch.stack([is_here.sum(), is_busy.sum()]).tolist()
        n_missing = len(ids) - n_here
        n = min(n_missing, self.n_slots - n_busy)
        self._early = ids if n == n_missing else None
        if not n:
            return Claim(ids[:0], slots[:0], ids[:0], n_busy + n_missing)
        new = _chosen(ids, ~is_here, n_missing)[:n]
        taken = torch.argsort(wanted, stable=True)[:n]
        n_free = min(n, self._n_free)
        old = self._id_of.index_select(0, taken[n_free:])
        self.slot_of.index_fill_(0, old.long(), _NOWHERE)
        self.slot_of.index_copy_(0, new.long(), taken.int())
        self._id_of.index_copy_(0, taken, new)
        self._wanted.index_fill_(0, taken, self._batch + 1)
        self._n_free -= n_free
        return Claim(new, taken.int(), old, n_busy + n_missing)

    def grow(self, n_slots: int) -> None:
        """Add slots without rows, so that there are ``n_slots``."""
        n_added = n_slots - self.n_slots
        wanted = pad(self._wanted[: self.n_slots], (0, n_added + 1), value=_FREE)
        self._id_of = pad(self._id_of, (0, n_added), value=_NOWHERE)
        self._wanted = wanted  # with the other, or neither
        self._n_free += n_added

    def unsaved(self) -> tuple[Tensor, Tensor]:
        """Rows that may be newer than in the host's tables, sorted, and their slots: those that
        batches have wanted since the last call of `note_saved`. Synchronises."""
        ids = torch.nonzero(self.slot_of >= 0).squeeze(1).int()
        slots = self.slots(ids)
        if self.is_complete:
            return ids, slots
        is_later = self._wanted.index_select(0, slots) > self._home
        return ids[is_later], slots[is_later]

    def note_saved(self) -> None:
        """The host's tables have all updates so far."""
        self._home = self._batch

    def follow(self, change: Replacement) -> None:
        """Follow rows that have been replaced. Synchronises.

        A new row has the slot of the row whose place it takes, and rows that move keep theirs.
        """
        self._early = None
        if self.is_complete:  # and after that perhaps not
            self._wanted[:-1].masked_fill_(self._id_of >= 0, self._batch)
        vacant = self.slots(change.vacant)
        vacant = vacant[vacant >= 0].long()
        self._id_of.index_fill_(0, vacant, _NOWHERE)
        self._wanted.index_fill_(0, vacant, _FREE)
        self._n_free += len(vacant)
        slots = self.slots(change.moved_from)
        is_here = slots >= 0
        self._id_of.index_copy_(0, slots[is_here].long(), change.moved_to[is_here].int())
        slot_of = self.slot_of
        if change.n_after > change.n_before:
            slot_of = grown(slot_of, change.n_after, None)
            slot_of[change.n_before :] = _NOWHERE
        slot_of.index_copy_(0, change.moved_to, slots)
        self.slot_of = slot_of[: change.n_after]


def _chosen(values: Tensor, mask: Tensor, count: int) -> Tensor:
    """``values[mask]``, of which there are ``count``. Unlike that it does not synchronise."""
    place = (torch.cumsum(mask, 0) - 1).where(mask, count)
    return values.new_empty(count + 1).scatter_(0, place, values)[:count]
