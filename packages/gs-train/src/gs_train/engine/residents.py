# SPDX-License-Identifier: Apache-2.0
"""Rows of appearance that live on the device, with their moments, while batches want them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

import gs_adam
import gs_pinned
from gs_train.engine.trace import Trace
from gs_train.machine.lanes import Lanes
from gs_train.rows.away import Edit
from gs_train.rows.host_rows import HostRows
from gs_train.rows.host_tables import row_blocks
from gs_train.rows.replacement import Replacement, grown

HEADROOM = 1.0625
"""There are this many times the slots that two batches in a row want."""

_BLOCKS = 7
"""Multiprocessors that rows move through. One more moves them a little sooner and slows rendering
by more, except where batches are single views."""

_NOWHERE = -1

_CHOSEN = 32
"""Bytes a slot: the sort that finds the slots to give away."""
_FREE = -1
"""The batch that last wanted a slot without a row: no batch is as early."""


class Residents:
    """A cache in the device's memory over the tables of `HostRows`.

    A row comes when a batch first wants it and leaves when others need its slot, those first that
    no batch has wanted for longest. While it is here its optimizer steps are taken here, and the
    host does nothing for it; a row that slept is caught up where it arrives. Where a row happens to
    be changes no number.

    What is where is decided on the ``cull`` lane, rows move on ``load``, both ways at once.

    Args:
        host: the tables. Whoever reads or edits them brings the rows home first.
        lanes, trace: of the engine.
        most: rows that are here at once; None for as many as two batches in a row want.

    Attributes:
        loaded, stored: rows that have come and gone.
    """

    def __init__(self, host: HostRows, lanes: Lanes, trace: Trace, most: int | None) -> None:
        self._host = host
        self._lanes = lanes
        self._trace = trace
        self._most = most
        self._adam = gs_adam.DeviceRows(host.adam, host.device)
        self._rows = self._nothing()
        self._slot_of = self._id_of = self._wanted = torch.empty(0, dtype=torch.int32)
        self._n_free = 0
        self._last_step: Tensor | None = None
        self._is_open = False
        self._is_newer = False  # than the tables
        self._batch = 0  # the one that runs, counted from 1
        self._home = 0  # the last whose updates are in the tables
        self._wish = 0  # slots that two batches in a row have wanted
        self._early: Tensor | None = None  # rows that are here, or on their way, for the next batch
        self._updated: torch.cuda.Event | None = None  # behind the last updates
        self._arrived: torch.cuda.Event | None = None  # behind the rows brought last
        self.loaded = self.stored = 0
        host.away = self

    @staticmethod
    def wanted(n_two: float, n_rows: int) -> int:
        """Slots for batches of which two in a row see ``n_two`` of ``n_rows`` rows."""
        return max(1, min(math.ceil(n_two * HEADROOM), n_rows))

    @staticmethod
    def table_bytes(n_slots: int, width: int) -> int:
        """Bytes of the rows in so many slots, with both moments."""
        return 3 * 4 * width * n_slots

    @staticmethod
    def list_bytes(n_rows: int, n_slots: int) -> int:
        """Bytes of the lists: slot and last step of each row, row and last batch of each slot."""
        return 8 * n_rows + (8 + _CHOSEN) * n_slots

    @property
    def values(self) -> Tensor:
        """(C, W) rows of ``sh0`` and ``shN``, by slot."""
        return self._rows[0]

    @property
    def n_bytes(self) -> int:
        """Bytes of the rows that are here, and of the lists of what is where."""
        if not self._is_open:
            return 0
        lists = [self._slot_of, self._id_of, self._wanted]
        lists += [] if self._last_step is None else [self._last_step]
        return sum(tensor.nbytes for tensor in (*self._rows, *lists))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row that moves: its values and both moments."""
        return 3 * 4 * self._host.width

    def fits(self, n_rows: int) -> bool:
        """Whether a batch that sees so many rows can be updated here."""
        return self._most is None or n_rows <= self._most

    # -- batches -------------------------------------------------------------------------------

    def bring_early(self, ids: Tensor) -> None:
        """Bring rows for the next batch, as far as the present one leaves slots.

        Args:
            ids: (U,) int32, sorted.

        Synchronises with the ``cull`` lane. May run on another thread while the present batch is
        drawn: only its rows are read then, and these stay.
        """
        if not self._is_open:
            return
        # Rows that leave were updated by the batch before this one at the latest.
        self._lanes.wait("cull", self._updated)
        if self._bring(ids, self._batch + 1, busy_from=self._batch):
            self._early = ids

    def bring(self, ids: Tensor) -> Tensor:
        """Begin a batch: bring what is still missing.

        Args:
            ids: (U,) int32, sorted, for which `fits` holds.

        Returns:
            (U,) int32 slots; `wake` comes before anything else that reads them.

        Synchronises where `bring_early` has not brought everything.
        """
        self._make_room(ids.shape[0])
        self._batch += 1
        if ids is not self._early:
            self._lanes.wait("cull", self._lanes.mark("compute"))
            with self._lanes.on("cull"):
                # Rows that were brought early for other views are not in the way.
                self._wanted.clamp_(max=self._batch - 1)
            self._bring(ids, self._batch, busy_from=self._batch)
        self._early = None
        self._lanes.wait("compute", self._lanes.mark("cull"))
        return self._slot_of.index_select(0, ids)

    def wake(
        self,
        slots: Tensor,
        ids: Tensor,
        step: int,
        marks: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        """Make rows what ``step`` of the host's optimizer, which is open, begins with.

        Args:
            slots, ids: (U,) of the rows.
            marks: (U,) bool: which of them; None: all.
            counts: (2,) int64 on the device: the marked rows, and those of them that slept, are
                added.
        """
        self._lanes.wait("compute", self._arrived)
        self._adam.wake(
            *self._rows, slots, self._last_step, ids, step=step, marks=marks, counts=counts
        )
        self._is_newer = True

    def update(
        self,
        slots: Tensor,
        ids: Tensor,
        gradients: Tensor,
        step: int,
        marks: Tensor | None = None,
    ) -> None:
        """Take a step with the gradients, (U, W), of the rows that `wake` was given."""
        self._adam.update(
            *self._rows, slots, self._last_step, ids, gradients, step=step, marks=marks
        )
        self._updated = self._lanes.mark("compute")

    # -- the tables ----------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """See `Away.is_open`."""
        return self._is_open

    def read_rows(self, ids: Tensor) -> Tensor:
        """See `Away.read_rows`."""
        self._settle()
        out = torch.empty((len(ids), self._host.width), device=self._host.device)
        for part in row_blocks(len(ids), self.row_bytes):
            out[part] = self._copied(ids[part])[0]
        return out

    def edit(self, ids: Tensor, change: Edit) -> None:
        """See `Away.edit`."""
        self._settle()
        for part in row_blocks(len(ids), self.row_bytes):
            rows = ids[part]
            tables = self._copied(rows)
            change(part, tables)
            self._write(rows, tables)
            for table, values in zip(self._tables(), tables):
                gs_pinned.scatter(values, rows, table)
        for table in self._tables():
            table.wait()
        self._updated = self._lanes.mark("compute")

    def replace(self, change: Replacement, values: Tensor) -> None:
        """See `Away.replace`. A new row goes on in the slot of the row whose place it takes."""
        self._settle()
        # Its lists are read on ``compute``, too: the memory of the old ones stays theirs till then.
        self._lanes.wait("cull", self._lanes.mark("compute"))
        with self._lanes.on("cull"):
            self._slots_follow(change)
            if self._last_step is not None:
                last_step = grown(self._last_step, change.n_after, None)
                self._last_step = change.edited(last_step, self._host.adam.step_count)
        self._lanes.wait("compute", self._lanes.mark("cull"))
        self._is_newer, self._early = True, None
        tables = [values, *(torch.zeros_like(values[:1]).expand_as(values) for _ in range(2))]
        self._write(change.placed, tables)
        self._updated = self._lanes.mark("compute")

    def _slots_follow(self, change: Replacement) -> None:
        """Slots of removed rows become free where no new row takes their place; rows that move keep
        theirs. Synchronises."""
        if self._has_all(change.n_before):  # and after that perhaps not: nobody noted their batch
            self._wanted[:-1].masked_fill_(self._id_of >= 0, self._batch)
        vacant = self._slot_of.index_select(0, change.vacant)
        vacant = vacant[vacant >= 0].long()
        self._id_of.index_fill_(0, vacant, _NOWHERE)
        self._wanted.index_fill_(0, vacant, _FREE)
        self._n_free += len(vacant)
        slots = self._slot_of.index_select(0, change.moved_from)
        is_here = slots >= 0
        self._id_of.index_copy_(0, slots[is_here].long(), change.moved_to[is_here].int())
        slot_of = self._slot_of
        if change.n_after > change.n_before:
            slot_of = grown(slot_of, change.n_after, None)
            slot_of[change.n_before :] = _NOWHERE
        slot_of.index_copy_(0, change.moved_to, slots)
        self._slot_of = slot_of[: change.n_after]

    def _settle(self) -> None:
        """Later work on ``compute`` sees rows and slots as they are."""
        self._lanes.wait("compute", self._arrived)
        self._lanes.wait("compute", self._lanes.mark("cull"))

    def _copied(self, ids: Tensor) -> list[Tensor]:
        """(R, W) each: values and moments, caught up, in tensors of their own. Synchronises."""
        slots = self._slot_of.index_select(0, ids)
        here, missing = (slots >= 0).nonzero().flatten(), (slots < 0).nonzero().flatten()
        slots, ids_at_home = slots.index_select(0, here), ids.index_select(0, missing)
        copies = []
        for table, rows in zip(self._tables(), self._rows):
            copy = rows.new_empty((len(ids), self._host.width))
            copy.index_copy_(0, here, rows.index_select(0, slots))
            gs_pinned.gather(table, ids_at_home, copy, slots=missing.to(ids.dtype))
            copies.append(copy)
        if self._last_step is not None and self._host.adam.step_count:
            last_step = self._last_step.index_select(0, ids)
            own = torch.arange(len(ids), dtype=torch.int32, device=ids.device)
            self._adam.flush(*copies, own, last_step, own)
        return copies

    def _write(self, ids: Tensor, tables: Sequence[Tensor]) -> None:
        """Write values and moments, up to date, where rows are here. Synchronises."""
        slots = self._slot_of.index_select(0, ids)
        here = (slots >= 0).nonzero().flatten()
        slots = slots.index_select(0, here).long()
        for rows, values in zip(self._rows, tables):
            rows.index_copy_(0, slots, values.index_select(0, here))
        if self._last_step is not None:
            self._last_step.index_fill_(0, ids.long(), self._host.adam.step_count)
            self._is_newer = True

    def come_home(self) -> None:
        """See `Away.come_home`."""
        if not self._is_newer:
            return
        self._lanes.wait("cull", self._lanes.mark("compute"))
        self._lanes.wait("cull", self._arrived)
        with self._lanes.on("cull"):
            ids = torch.nonzero(self._slot_of >= 0).squeeze(1).int()
            slots = self._slot_of.index_select(0, ids)
            if not self._is_complete:
                updated = self._wanted.index_select(0, slots) > self._home
                ids, slots = ids[updated], slots[updated]
            steps, stream = self._host.steps, self._lanes.stream("cull")
            for table, rows in zip(self._tables(), self._rows):
                gs_pinned.scatter(rows, ids, table, slots=slots, stream=stream)
            if steps is not None and self._last_step is not None:
                # Not torch's copy: page-locked memory that has grown is locked in pieces, and no
                # single copy may reach over two of them.
                gs_pinned.scatter(self._last_step[:, None], slice(None), steps, stream=stream)
                steps.wait()
        for table in self._tables():
            table.wait()
        self._home, self._is_newer = self._batch, False

    def forget(self) -> None:
        """See `Away.forget`. Gives the memory back: whoever changes all rows needs some."""
        self._is_open, self._early = False, None
        self._rows = self._nothing()
        self._slot_of = self._id_of = self._wanted = torch.empty(0, dtype=torch.int32)
        self._last_step = None

    def _make_room(self, n_rows: int) -> None:
        """Slots for a batch of so many rows and, if memory allows, for the next one beside it."""
        n = self._host.n_rows
        if self._most is None:
            most, wanted = n, min(max(n_rows, self._wish), n)
        else:
            most, wanted = self._most, min(self._most, n)
        if self._is_open and self._most is not None and wanted > len(self.values):
            # Memory that is limited has no room for tables beside larger ones: the rows come again.
            self.come_home()
            self.forget()
        before = self.values.shape[0] if self._is_open else 0
        if not self._is_open:
            self._host.rest()
        if wanted > before:
            n_slots = min(math.ceil(wanted * HEADROOM), most)
            self._lanes.wait("compute", self._arrived)
            for k in range(len(self._rows)):
                self._grow(k, n_slots, before)
            if before and self._host.device.type == "cuda":
                # The old tables' memory is too small for the new ones: nothing here wants it.
                torch.cuda.empty_cache()
        if not self._is_open:
            self._open()
        elif wanted > before:
            self._lanes.wait("cull", self._lanes.mark("compute"))
            with self._lanes.on("cull"):
                self._id_of = pad(self._id_of, (0, n_slots - before), value=_NOWHERE)
                self._wanted = pad(self._wanted[:before], (0, n_slots + 1 - before), value=_FREE)
            self._n_free += n_slots - before
        if self._most is not None and len(self.values) >= n and not self._is_complete:
            self._bring_all()

    def _grow(self, k: int, n_slots: int, kept: int) -> None:
        rows = torch.empty((n_slots, self._host.width), device=self._host.device)
        rows[:kept] = self._rows[k][:kept]
        self._rows[k] = rows

    def _open(self) -> None:
        """Begin with nothing here."""
        with self._lanes.on("cull"):
            device, n_slots = self._host.device, len(self.values)
            self._slot_of = torch.full(
                (self._host.n_rows,), _NOWHERE, dtype=torch.int32, device=device
            )
            self._id_of = torch.full((n_slots,), _NOWHERE, dtype=torch.int32, device=device)
            # One more than there are slots: what is written for rows that have none.
            self._wanted = torch.full((n_slots + 1,), _FREE, dtype=torch.int32, device=device)
            steps, stream = self._host.steps, self._lanes.stream("cull")
            self._last_step = None
            if steps is not None:
                self._last_step = torch.empty(len(steps), dtype=torch.int32, device=device)
                gs_pinned.gather(steps, slice(None), self._last_step[:, None], stream=stream)
        self._n_free = n_slots
        self._is_open = True

    def _bring_all(self) -> None:
        """Bring every row that is not here; there are slots for them."""
        self._lanes.wait("cull", self._lanes.mark("compute"))
        with self._lanes.on("cull"):
            n, device = self._host.n_rows, self._host.device
            everything = torch.arange(n, dtype=torch.int32, device=device)
        self._bring(everything, self._batch, busy_from=self._batch + 1)

    @property
    def _is_complete(self) -> bool:
        """Whether every row is here, so that none comes or goes and nobody asks when."""
        return self._has_all(self._host.n_rows)

    def _has_all(self, n_rows: int) -> bool:
        return self.values.shape[0] - self._n_free == n_rows

    def _bring(self, ids: Tensor, batch: int, *, busy_from: int) -> bool:
        """Bring rows into slots that no batch from ``busy_from`` on wants; whether all have come
        or are here."""
        n_slots = self.values.shape[0]
        if self._is_complete:
            return True
        with self._lanes.on("cull"):
            slots = self._slot_of.index_select(0, ids)
            is_here = slots >= 0
            self._wanted.index_fill_(0, slots.where(is_here, n_slots).long(), batch)
            wanted = self._wanted[:n_slots]
            counts = torch.stack([is_here.sum(), (wanted >= busy_from).sum()])
            n_here, n_busy = counts.tolist()
            n_missing = ids.shape[0] - n_here
            self._wish = max(self._wish, n_busy + n_missing)
            n = min(n_missing, n_slots - n_busy)
            if n:
                new = _chosen(ids, ~is_here, n_missing)[:n]
                taken = torch.argsort(wanted, stable=True)[:n]
                n_free = min(n, self._n_free)  # slots without a row come first
                old = self._id_of.index_select(0, taken[n_free:])
                self._slot_of.index_fill_(0, old.long(), _NOWHERE)
                self._slot_of.index_copy_(0, new.long(), taken.int())
                self._id_of.index_copy_(0, taken, new)
                self._wanted.index_fill_(0, taken, batch)
                self._n_free -= n_free
                self._exchange(new, old, taken.int())
        return n == n_missing

    def _exchange(self, new: Tensor, old: Tensor, slots: Tensor) -> None:
        """Rows ``old`` leave the last of ``slots``, rows ``new`` come to all of them."""
        self._lanes.wait("load", self._lanes.mark("cull"))
        n_new, n_old = new.shape[0], old.shape[0]
        with self._trace.on("load", f"load {n_new:,}, store {n_old:,}"):
            stream = self._lanes.stream("load")
            gs_pinned.exchange(
                self._tables(), self._rows, old, new, slots, stream=stream, max_blocks=_BLOCKS
            )
        self._arrived = self._lanes.mark("load")
        self.loaded += n_new
        self.stored += n_old

    def _tables(self) -> tuple[gs_pinned.Table, gs_pinned.Table, gs_pinned.Table]:
        return self._host.table, *self._host.moments

    def _nothing(self) -> list[Tensor]:
        return [torch.empty((0, self._host.width), device=self._host.device) for _ in range(3)]


def _chosen(values: Tensor, mask: Tensor, count: int) -> Tensor:
    """``values[mask]``, of which there are ``count``. Unlike that it does not synchronise."""
    place = (torch.cumsum(mask, 0) - 1).where(mask, count)
    return values.new_empty(count + 1).scatter_(0, place, values)[:count]
