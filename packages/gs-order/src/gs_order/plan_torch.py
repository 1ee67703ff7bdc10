# SPDX-License-Identifier: Apache-2.0
"""Plans of torch tensors, on their device: torch operations, and one synchronisation.

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

from gs_order.plan_numpy import KINDS, Lists
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
        final = self._tally(self.last)
        together = visible
        if retain == "previous":
            load = visible - shared
            store = torch.cat([visible[:-1] - shared[1:], visible[-1:]])
        elif retain == "last_use":
            for i in reversed(range(n)):
                self.first.masked_fill_(self.seen_by(i), i)
            load, store = self._tally(self.first), final
        else:
            together = torch.stack(
                [self.seen_from(i, min(i + ahead + 1, n)).any(dim=0).sum() for i in range(n)]
            )
            load, store = self._give_up(int(retain), ahead, visible, together)
        stray = self._stray_bits()
        unsorted = (self.ids[1:] <= self.ids[:-1]).any() if self.n_rows > 1 else stray.new_zeros(())
        flags = torch.stack([unsorted.long(), stray.long()])
        host = torch.cat([visible, load, store, final, together, flags]).cpu().numpy()
        visible_, load_, store_, final_, together_ = host[: 5 * n].reshape(5, n)
        return Counts(visible_, load_, store_, final_, together_, not host[-2], not host[-1])

    def _groups(self) -> list[tuple[int, int]]:
        starts = range(0, self.n_views, self.group)
        return [(start, min(start + self.group, self.n_views)) for start in starts]

    def _zeros(self) -> Tensor:
        return torch.zeros(self.n_views, dtype=torch.int64, device=self.device)

    def _tally(self, times: Tensor, start: int = 0) -> Tensor:
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

    def _give_up(
        self, capacity: int, ahead: int, visible: Tensor, together: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Belady's rule (see `plan_numpy`), without asking the device how many rows that takes.

        Sets ``self.kept_into`` and ``self.kept_from``, (W, U) int32: bit i says that microbatch i
        finds the row waiting, and that it lets the row wait.
        """
        n, n_words = self.n_views, -(-self.n_views // 32)
        shape = (n_words, self.n_rows)
        uses = torch.zeros(shape, dtype=torch.int32, device=self.device)
        for i in range(n):
            uses[i // 32].bitwise_or_(self.seen_by(i).int() << (i % 32))
        self.kept_into, self.kept_from = torch.zeros_like(uses), torch.zeros_like(uses)
        waiting = torch.zeros(self.n_rows, dtype=torch.bool, device=self.device)
        next_use = torch.full((self.n_rows,), n, dtype=torch.int16, device=self.device)
        last_use = torch.zeros(self.n_rows, dtype=torch.int32, device=self.device)
        load = visible.clone()
        for t in range(n):
            waiting &= ~self._latest(waiting, next_use, together[t] - capacity, t + ahead)
            here = self.seen_by(t)
            kept = here & waiting
            load[t] -= kept.sum()
            self.kept_into[t // 32].bitwise_or_(kept.int() << (t % 32))
            for word in range(t // 32 + 1):
                of_word = kept & (last_use // 32 == word)
                self.kept_from[word].bitwise_or_(of_word.int() << (last_use % 32))
            last_use.masked_fill_(here, t)
            after = _next_bit(uses, t + 1, n)
            next_use = torch.where(here, after, next_use)
            waiting = torch.where(here, after < n, waiting)
        carried = torch.stack([((self.kept_from[i // 32] >> (i % 32)) & 1).sum() for i in range(n)])
        return load, visible - carried

    def _latest(self, waiting: Tensor, next_use: Tensor, beyond: Tensor, horizon: int) -> Tensor:
        """Of the rows waiting for microbatches after ``horizon``, those to give up.

        That is ``beyond`` + their number of them, if positive: the ones needed last, by highest row
        among equals.
        """
        idle = waiting & (next_use > horizon)
        excess = beyond + idle.sum()
        waits = self._tally(torch.where(idle, next_use, -1), horizon + 1)
        from_end = waits.flip(0).cumsum(0).flip(0)  # [j]: rows that wait for j or a later one
        # The one j of whose rows some go and some stay: the last with more than the excess. It is
        # compared with, never indexed by: an index of no dimensions is read back by the host.
        divided = (from_end > excess).sum() - 1
        gone = idle & (next_use > divided)
        of_it = idle & (next_use == divided)
        from_highest_row = of_it.sum() - of_it.cumsum(0)
        return gone | (of_it & (from_highest_row < excess - gone.sum()))

    def lists(self, retain: str | int, counts: Counts) -> Lists:
        """All lists, with nothing asked of the device."""
        numbers = {
            "visible": counts.visible,
            "load": counts.load,
            "retain": counts.visible - counts.load,
            "store": counts.store,
            "carry": counts.visible - counts.store,
            "returning": counts.store - counts.final,
            "final": counts.final,
        }
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
        values = {"visible": self.ids[rows]}
        first = torch.as_tensor(offsets["visible"][:-1]).to(self.device, non_blocking=True)
        for kind, flag in flags.items():
            size = int(offsets[kind][-1])
            number = torch.as_tensor(numbers[kind]).to(self.device, non_blocking=True)
            base = torch.repeat_interleave(first, number, output_size=size)
            values[kind] = (set_places(flag, size) - base).to(torch.int32)
        self.rows = rows
        return Lists(offsets, values)

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
                loaded = ~_bit_at(self.kept_into, row, i)
                stored = ~_bit_at(self.kept_from, row, i)
            parts.append((row.to(torch.int32), loaded, stored, done))
        return tuple(torch.cat(columns) for columns in zip(*parts))

    def slots(self, lists: Lists, n_slots: int, ahead: int) -> Tensor:
        """Slots of visible rows, as `plan_numpy.assign_slots`: the same queue, by slices."""
        rows = Ragged(self.rows, lists.offsets["visible"])
        load = Ragged(lists.values["load"], lists.offsets["load"])
        store = Ragged(lists.values["store"], lists.offsets["store"])
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
        return slots


def _next_bit(words: Tensor, start: int, n: int) -> Tensor:
    """(U,) int16: the lowest bit at or after ``start`` in words (W, U) int32; n without any."""
    found = torch.full_like(words[0], n)
    for word in range(len(words) - 1, start // 32 - 1, -1):
        bits = words[word].long() & 0xFFFFFFFF
        if word == start // 32:
            bits = bits >> (start % 32) << (start % 32)
        # The lowest bit alone is a power of two: float32 holds it, and its exponent is exact, which
        # a logarithm need not be on every device.
        position = torch.frexp((bits & -bits).float()).exponent - 1
        found = torch.where(bits != 0, position + 32 * word, found)
    return found.to(torch.int16)


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
