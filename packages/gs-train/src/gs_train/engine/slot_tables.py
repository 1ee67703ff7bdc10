# SPDX-License-Identifier: Apache-2.0
"""Values and optimizer state of the rows in slots, beside the host's tables of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

import gs_adam
import gs_pinned
from gs_train.engine.occupancy import Claim, Occupancy
from gs_train.rows.attributes import columns
from gs_train.rows.away import Edit
from gs_train.rows.host_rows import HostRows
from gs_train.rows.host_tables import row_blocks
from gs_train.rows.replacement import Replacement, grown

_BLOCKS = 7
"""Multiprocessors that rows move through. One more moves them a little sooner and slows rendering
by more, except where batches are single views."""


class SlotTables:
    """Rows of appearance and both moments in C slots of the device, and the last step of all rows.

    Work is enqueued on the present stream, or on ``stream`` where a method takes one; the caller
    orders the streams.

    Args:
        host: the tables of all rows.

    Attributes:
        places: which row is in which slot.
        tables: (C, W) values, first and second moments.
        is_newer: whether some row is newer here than in the host's tables.
    """

    def __init__(self, host: HostRows) -> None:
        self._host = host
        self._adam = gs_adam.DeviceRows(host.adam, host.device)
        self.is_newer = False
        self._columns: Mapping[str, Tensor] | None = None
        self.clear()

    @property
    def n_bytes(self) -> int:
        """Bytes of the tables, and of the lists of what is where."""
        steps = 0 if self._last_step is None else self._last_step.nbytes
        return sum(table.nbytes for table in self.tables) + self.places.n_bytes + steps

    @property
    def columns(self) -> Mapping[str, Tensor]:
        """(C, ...) ``sh0`` and ``shN`` by slot: the same tensors while the tables stay."""
        if self._columns is None:
            self._columns = columns(self.tables[0])
        return self._columns

    @property
    def home(self) -> tuple[gs_pinned.Table, ...]:
        """The host's tables of the same."""
        return self._host.table, *self._host.moments

    def clear(self) -> None:
        """Give the memory back."""
        self._columns = None
        self.tables = [self._empty(0) for _ in range(3)]
        self.places = Occupancy(0, 0, self._host.device)
        self._last_step: Tensor | None = None

    def grow(self, n_slots: int) -> None:
        """Make the tables larger, all or none of them.

        They are copied one by one: the memory of one is needed beside them.
        """
        n_before = len(self.tables[0])
        self._columns = None  # which would keep the smaller table alive
        for k in range(len(self.tables)):
            self.tables[k] = grown(self.tables[k], n_slots, n_slots)[:n_before]
        # There is memory for all of them.
        self.tables = [grown(table, n_slots, n_slots) for table in self.tables]
        if self.places.n_slots and self._host.device.type == "cuda":
            # The old tables' memory is too small for the new ones: nothing here wants it.
            torch.cuda.empty_cache()

    def open(self, stream: torch.cuda.Stream | None) -> None:
        """Begin with no row in a slot."""
        self.places = Occupancy(self._host.n_rows, len(self.tables[0]), self._host.device)
        if (steps := self._host.steps) is not None:
            self._last_step = self.places.slot_of.new_empty(len(steps))
            gs_pinned.gather(steps, slice(None), self._last_step[:, None], stream=stream)

    def exchange(self, claim: Claim, stream: torch.cuda.Stream | None) -> None:
        """Move the rows that a claim names, both ways at once."""
        gs_pinned.exchange(
            *(self.home, self.tables, claim.old, claim.new, claim.slots),
            stream=stream,
            max_blocks=_BLOCKS,
        )

    def wake(
        self, slots: Tensor, ids: Tensor, step: int, marks: Tensor | None, counts: Tensor | None
    ) -> None:
        """See `Residents.wake`."""
        self._adam.wake(
            *self.tables, slots, self._last_step, ids, step=step, marks=marks, counts=counts
        )
        self.is_newer = True

    def update(
        self, slots: Tensor, ids: Tensor, gradients: Tensor, step: int, marks: Tensor | None
    ) -> None:
        """See `Residents.update`."""
        self._adam.update(
            *self.tables, slots, self._last_step, ids, gradients, step=step, marks=marks
        )

    def read(self, ids: Tensor) -> Tensor:
        """(R, W) caught-up values of rows, wherever they are. Synchronises."""
        out = self._empty(len(ids))
        for part in row_blocks(len(ids), 3 * 4 * self._host.width):
            out[part] = self._copied(ids[part])[0]
        return out

    def edit(self, ids: Tensor, change: Edit) -> None:
        """Change rows here and in the host's tables; see `Away.edit`. Synchronises."""
        for part in row_blocks(len(ids), 3 * 4 * self._host.width):
            rows = ids[part]
            edited = self._copied(rows)
            change(part, edited)
            self.write(rows, edited)
            for table, values in zip(self.home, edited):
                gs_pinned.scatter(values, rows, table)
        for table in self.home:
            table.wait()

    def follow(self, change: Replacement) -> None:
        """Follow the places of rows that have been replaced; values of new rows are for `write`.
        Synchronises."""
        self.places.follow(change)
        if self._last_step is not None:
            last_step = grown(self._last_step, change.n_after, None)
            self._last_step = change.edited(last_step, self._host.adam.step_count)
        self.is_newer = True

    def write(self, ids: Tensor, tables: Sequence[Tensor]) -> None:
        """Write values and moments, up to date, where rows are here. Synchronises."""
        slots = self.places.slots(ids)
        here = (slots >= 0).nonzero().flatten()
        slots = slots.index_select(0, here).long()
        for table, values in zip(self.tables, tables):
            table.index_copy_(0, slots, values.index_select(0, here))
        if self._last_step is not None:
            self._last_step.index_fill_(0, ids.long(), self._host.adam.step_count)
            self.is_newer = True

    def store(self, stream: torch.cuda.Stream | None) -> None:
        """Write home the rows that may be newer here; waits."""
        ids, slots = self.places.unsaved()
        for table, rows in zip(self.home, self.tables):
            gs_pinned.scatter(rows, ids, table, slots=slots, stream=stream)
        if (steps := self._host.steps) is not None and self._last_step is not None:
            # Not torch's copy: page-locked memory that has grown is locked in pieces, and no
            # single copy may reach over two of them.
            gs_pinned.scatter(self._last_step[:, None], slice(None), steps, stream=stream)
            steps.wait()
        for table in self.home:
            table.wait()
        self.places.note_saved()
        self.is_newer = False

    def _empty(self, n_rows: int) -> Tensor:
        return torch.empty((n_rows, self._host.width), device=self._host.device)

    def _copied(self, ids: Tensor) -> list[Tensor]:
        """(R, W) each: values and moments, caught up, in tensors of their own. Synchronises."""
        slots = self.places.slots(ids)
        here, missing = (slots >= 0).nonzero().flatten(), (slots < 0).nonzero().flatten()
        slots, ids_at_home = slots.index_select(0, here), ids.index_select(0, missing)
        copies = []
        for at_home, table in zip(self.home, self.tables):
            copy = self._empty(len(ids)).index_copy_(0, here, table.index_select(0, slots))
            gs_pinned.gather(at_home, ids_at_home, copy, slots=missing.to(ids.dtype))
            copies.append(copy)
        if self._last_step is not None and self._host.adam.step_count:
            last_step = self._last_step.index_select(0, ids)
            own = torch.arange(len(ids), dtype=torch.int32, device=ids.device)
            self._adam.flush(*copies, own, last_step, own)
        return copies
