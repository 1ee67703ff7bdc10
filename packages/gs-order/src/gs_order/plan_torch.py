# SPDX-License-Identifier: Apache-2.0
"""Plans of tensors on a device, by torch operations alone; `plan_triton` does the same sooner.

All sizes are counted first, brought to the host together, and the lists are then extracted with
sizes known, so that nothing waits for the device again. The work runs over groups of microbatches
to bound the workspace: about 12 bytes per row of U and microbatch of a group.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gs_order.plan_checks import check_capacity, check_rising, check_views
from gs_order.plan_lists import KINDS, MOVED, Lists, numbers_of
from gs_order.plan_slots import Slots, most_live
from gs_order.plan_torch_belady import Kept, give_up
from gs_order.ragged import Ragged, offsets_of

Tensor = torch.Tensor

_GROUP_ELEMENTS = 1 << 26


@dataclass(frozen=True)
class Counts:
    """Rows on the host after the one synchronisation.

    Attributes:
        visible, load, store, final, together: (B,) int64; together: of microbatches i .. i + ahead.
        ids_rise, bits_belong: whether ids are sorted and unique, and no bit is beyond the views.
    """

    visible: np.ndarray[Any, Any]
    load: np.ndarray[Any, Any]
    store: np.ndarray[Any, Any]
    final: np.ndarray[Any, Any]
    together: np.ndarray[Any, Any]
    ids_rise: bool
    bits_belong: bool


def make_lists(
    ids: Tensor, mask: Tensor, views: np.ndarray[Any, Any], retain: str | int, ahead: int
) -> tuple[Lists, Slots | None]:
    """Lists and slots of a batch; arguments as for `plan`, checked for kind and shape."""
    planner = Planner(ids, mask, views)
    counts = planner.count(retain, ahead)
    check_rising(counts.ids_rise)
    check_views(counts.bits_belong, len(views))
    if not isinstance(retain, str):
        check_capacity(retain, counts.together, ahead)
    lists = planner.lists(retain, counts)
    if retain == "previous":
        return lists, None
    return lists, planner.slots(lists, most_live(lists.offsets, ahead), ahead)


class Planner:
    """One batch on its way from bits to lists.

    Args:
        ids: (U,) int32 or int64.
        mask: (U, W) int32 bit patterns, same device.
        order: (B,) int64 numpy.
    """

    def __init__(self, ids: Tensor, mask: Tensor, order: np.ndarray[Any, Any]) -> None:
        self.ids, self.device = ids, ids.device
        self.n_rows, self.n_views = len(ids), len(order)
        self.words = mask.view(torch.int32).T.contiguous()
        self.word_of = [int(v) // 32 for v in order]
        bits = (np.uint32(1) << (order % 32).astype(np.uint32)).view(np.int32)
        self.bit_of = [int(b) for b in bits]
        self.group = max(1, min(self.n_views, _GROUP_ELEMENTS // max(1, self.n_rows)))
        self.kept: Kept | None = None
        self.places: dict[str, Tensor] = {}
        self.first = torch.full((self.n_rows,), -1, dtype=torch.int16, device=self.device)
        self.last = torch.full((self.n_rows,), -1, dtype=torch.int16, device=self.device)

    def seen_by(self, i: int, out: Tensor | None = None) -> Tensor:
        """(U,) bool: the rows that microbatch i sees; none outside the batch."""
        if not 0 <= i < self.n_views:
            none = torch.empty_like(self.words[0], dtype=torch.bool) if out is None else out
            return none.zero_()
        return torch.ne(self.words[self.word_of[i]] & self.bit_of[i], 0, out=out)

    def seen_from(self, start: int, stop: int) -> Tensor:
        """(stop - start, U) bool: the rows of those microbatches."""
        seen = torch.empty((stop - start, self.n_rows), dtype=torch.bool, device=self.device)
        for k in range(stop - start):
            self.seen_by(start + k, out=seen[k])
        return seen

    def count(self, retain: str | int, ahead: int) -> Counts:
        """Find who is first and last, and count everything; synchronises once.

        For a capacity the rows given up are chosen here too.
        """
        n = self.n_views
        visible, shared = self._zeros(), self._zeros()
        for start, stop in self._groups():
            seen = self.seen_from(start - 1, stop)
            visible[start:stop] = seen[1:].sum(dim=1)
            if retain == "previous":
                shared[start:stop] = (seen[1:] & seen[:-1]).sum(dim=1)
            for i in range(start, stop):
                self.last.masked_fill_(seen[i - start + 1], i)
        final = self.tally(self.last)
        together = visible
        if retain == "previous":
            load = visible - shared
            store = torch.cat([visible[:-1] - shared[1:], visible[-1:]])
        elif retain == "last_use":
            for i in reversed(range(n)):
                self.first.masked_fill_(self.seen_by(i), i)
            load, store = self.tally(self.first), final
        else:
            together = self.needed_together(ahead)
            self.kept = give_up(self, int(retain), ahead, visible, together)
            load, store = self.kept.load, self.kept.store
        stray = self._stray_bits()
        unsorted = (self.ids[1:] <= self.ids[:-1]).any() if self.n_rows > 1 else stray.new_zeros(())
        flags = torch.stack([unsorted.long(), stray.long()])
        host = torch.cat([visible, load, store, final, together, flags]).cpu().numpy()
        visible_, load_, store_, final_, together_ = host[: 5 * n].reshape(5, n)
        return Counts(visible_, load_, store_, final_, together_, not host[-2], not host[-1])

    def needed_together(self, ahead: int) -> Tensor:
        """(B,) int64: the rows that microbatches i .. i + ahead see together."""
        n = self.n_views
        sizes = [self.seen_from(i, min(i + ahead + 1, n)).any(dim=0).sum() for i in range(n)]
        return torch.stack(sizes)

    def _groups(self) -> list[tuple[int, int]]:
        starts = range(0, self.n_views, self.group)
        return [(start, min(start + self.group, self.n_views)) for start in starts]

    def _zeros(self) -> Tensor:
        return torch.zeros(self.n_views, dtype=torch.int64, device=self.device)

    def tally(self, times: Tensor, start: int = 0) -> Tensor:
        """(B,) int64: how many of ``times`` (U,) int16 are each microbatch; 0 before ``start``."""
        tally = self._zeros()
        for first in range(start, self.n_views, self.group):
            stop = min(first + self.group, self.n_views)
            group = torch.arange(first, stop, dtype=torch.int16, device=self.device)[:, None]
            tally[first:stop] = (times == group).sum(dim=1)
        return tally

    def _stray_bits(self) -> Tensor:
        """Whether a bit beyond the views is set, as a bool on the device."""
        known = np.zeros(len(self.words), np.uint32)
        for word, bit in zip(self.word_of, self.bit_of):
            known[word] |= np.uint32(bit & 0xFFFFFFFF)
        stray = torch.zeros((), dtype=torch.bool, device=self.device)
        for word, bits in enumerate((~known).view(np.int32)):
            stray = stray | (self.words[word] & int(bits)).any()
        return stray

    def lists(self, retain: str | int, counts: Counts) -> Lists:
        """All lists, with nothing asked of the device."""
        numbers = numbers_of(counts.visible, counts.load, counts.store, counts.final)
        offsets = {kind: offsets_of(numbers[kind]) for kind in KINDS}
        rows, loaded, stored, done = self._pairs(retain, offsets["visible"])
        flags = {
            "load": loaded,
            "retain": ~loaded,
            "store": stored,
            "carry": ~stored,
            "returning": stored & ~done,
            "final": done,
        }
        ids, positions = {"visible": self.ids[rows]}, {}
        first = torch.as_tensor(offsets["visible"][:-1]).to(self.device, non_blocking=True)
        for kind, flag in flags.items():
            size = int(offsets[kind][-1])
            number = torch.as_tensor(numbers[kind]).to(self.device, non_blocking=True)
            base = torch.repeat_interleave(first, number, output_size=size)
            places = set_places(flag, size)
            positions[kind] = (places - base).to(torch.int32)
            if kind in MOVED:
                ids[kind], self.places[kind] = ids["visible"][places], places
        if retain == "last_use":
            ids["store"], positions["store"] = ids["final"], positions["final"]
        self.rows = rows
        return Lists(offsets, ids, positions)

    def _pairs(self, retain: str | int, offsets: np.ndarray[Any, Any]) -> tuple[Tensor, ...]:
        """Rows of all microbatches, one after the other, and who is loaded, stored, done there."""
        parts: list[tuple[Tensor, ...]] = []
        for start, stop in self._groups():
            # One microbatch more on each side, for what is shared across the group's borders.
            seen = self.seen_from(start - 1, stop + 1)
            size = int(offsets[stop] - offsets[start])
            place = set_places(seen[1:-1].reshape(-1), size)
            row = place % max(1, self.n_rows)
            i = (place // max(1, self.n_rows) + start).to(torch.int16)
            done = self.last[row] == i
            if retain == "previous":
                everywhere = seen.reshape(-1)
                loaded = ~everywhere[place]
                stored = ~everywhere[place + 2 * self.n_rows]
            elif retain == "last_use":
                loaded, stored = self.first[row] == i, done
            else:
                assert self.kept is not None
                loaded = ~_bit_at(self.kept.into, row, i)
                stored = ~_bit_at(self.kept.until, row, i)
            parts.append((row.to(torch.int32), loaded, stored, done))
        return tuple(torch.cat(columns) for columns in zip(*parts))

    def slots(self, lists: Lists, n_slots: int, ahead: int) -> Slots:
        """Slots of all rows, as `plan_slots.assign_slots`: the same queue, by slices."""
        rows = Ragged(self.rows, lists.offsets["visible"])
        load = Ragged(lists.positions["load"], lists.offsets["load"])
        store = Ragged(lists.positions["store"], lists.offsets["store"])
        # The queue without wrapping: first all slots, then those that stores give back.
        queue = torch.empty(n_slots + len(store.values), dtype=torch.int32, device=self.device)
        queue[:n_slots] = torch.arange(n_slots, dtype=torch.int32, device=self.device)
        slot_of = torch.empty(self.n_rows, dtype=torch.int32, device=self.device)
        slots = torch.empty(len(rows.values), dtype=torch.int32, device=self.device)
        head, tail = 0, n_slots
        for i in range(self.n_views):
            p = i - 1 - ahead
            if p >= 0:
                leaving = rows[p][store[p]]
                queue[tail : tail + len(leaving)] = slot_of[leaving]
                tail += len(leaving)
            arriving = rows[i][load[i]]
            slot_of[arriving] = queue[head : head + len(arriving)]
            head += len(arriving)
            slots[lists.offsets["visible"][i] : lists.offsets["visible"][i + 1]] = slot_of[rows[i]]
        return Slots(
            n_slots, {"visible": slots, **{kind: slots[self.places[kind]] for kind in MOVED}}
        )


def _bit_at(words: Tensor, row: Tensor, i: Tensor) -> Tensor:
    """Bit i of each row, of words (W, U) int32."""
    position = i.long()
    flat = words.reshape(-1)[position // 32 * words.shape[1] + row]
    return ((flat >> (position % 32).int()) & 1).bool()


def set_places(flags: Tensor, size: int) -> Tensor:
    """(size,) int64: where ``flags`` is True, of which there are ``size``; never waits."""
    if _has_nonzero_static(flags.device.type):
        return torch.nonzero_static(flags, size=size)[:, 0]
    # Each True writes its place at its rank; all others write to one place too many.
    rank = torch.where(flags, flags.cumsum(dim=0) - 1, size)
    places = torch.arange(len(flags), device=flags.device)
    return torch.empty(size + 1, dtype=torch.int64, device=flags.device).scatter_(0, rank, places)[
        :size
    ]


@functools.cache
def _has_nonzero_static(device_type: str) -> bool:
    """Whether this torch has it for the device (CUDA: since 2.7)."""
    try:
        torch.nonzero_static(torch.zeros(1, dtype=torch.bool, device=device_type), size=0)
    except (NotImplementedError, RuntimeError):
        return False
    return True
