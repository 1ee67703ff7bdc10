# SPDX-License-Identifier: Apache-2.0
"""Rows of appearance that live on the device, with their moments, while batches want them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from gs_train.engine.slot_tables import SlotTables
from gs_train.engine.trace import Trace
from gs_train.machine.lanes import Lanes
from gs_train.rows.away import Edit
from gs_train.rows.host_rows import HostRows
from gs_train.rows.replacement import Replacement

HEADROOM = 1.0625
"""There are this many times the slots that two batches in a row want."""


class Residents:
    """A cache in the device's memory over the tables of `HostRows`.

    A row comes when a batch first wants it and leaves when others need its slot, those first that
    no batch has wanted for longest. While it is here its optimizer steps are taken here, and the
    host does nothing for it; a row that slept is caught up where it arrives. Where a row happens to
    be changes no number.

    What is where is decided on the ``cull`` lane, rows move on ``load``, both ways at once.

    Args:
        host: the tables, whose `Away` this becomes.
        lanes, trace: of the engine.
        most: rows that are here at once; None for as many as two batches in a row want.

    Attributes:
        is_open: see `Away.is_open`.
        loaded, stored: rows that have come and gone.
    """

    def __init__(self, host: HostRows, lanes: Lanes, trace: Trace, most: int | None) -> None:
        self._host = host
        self._lanes = lanes
        self._trace = trace
        self._most = most
        self._here = SlotTables(host)
        self.is_open = False
        self._wish = 0  # slots that two batches in a row have wanted
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
        """Bytes of the lists: slot and last step of each row; row and last batch of each slot, and
        32 bytes of it for the sort that finds slots to give away."""
        return 8 * n_rows + (8 + 32) * n_slots

    @property
    def values(self) -> Tensor:
        """(C, W) rows of ``sh0`` and ``shN``, by slot."""
        return self._here.tables[0]

    @property
    def columns(self) -> Mapping[str, Tensor]:
        """(C, ...) the same by attribute; see `SlotTables.columns`."""
        return self._here.columns

    @property
    def n_bytes(self) -> int:
        """Bytes of the rows that are here, and of the lists of what is where."""
        return self._here.n_bytes if self.is_open else 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row that moves: its values and both moments."""
        return self.table_bytes(1, self._host.width)

    def fits(self, n_rows: int) -> bool:
        """Whether a batch that sees so many rows can be updated here."""
        return self._most is None or n_rows <= self._most

    # ------------------------------------------------------------------ batches

    def bring_early(self, ids: Tensor) -> None:
        """Bring rows for the next batch, as far as the present one leaves slots.

        Args:
            ids: (U,) int32, sorted, made on the ``cull`` lane.

        Synchronises with the ``cull`` lane. May run on another thread while the present batch is
        drawn: only its rows are read then, and these stay.
        """
        if self.is_open:
            # Rows that leave were updated by the batch before this one at the latest.
            self._lanes.wait("cull", self._updated)
            self._bring(ids, is_early=True)

    def bring(self, ids: Tensor) -> Tensor:
        """Begin a batch: bring what is still missing.

        Args:
            ids: (U,) int32, sorted, for which `fits` holds.

        Returns:
            (U,) int32 slots; `wake` comes before anything else that reads them.

        Synchronises where `bring_early` has not brought everything.
        """
        self._make_room(len(ids))
        places = self._here.places
        if not places.has_all_early(ids):
            self._lanes.wait("cull", self._lanes.mark("compute"))
            self._bring(ids, is_early=False)
        places.begin()
        self._lanes.wait("compute", self._lanes.mark("cull"))
        return places.slots(ids)

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
        self._here.wake(slots, ids, step, marks, counts)

    def update(
        self,
        slots: Tensor,
        ids: Tensor,
        gradients: Tensor,
        step: int,
        marks: Tensor | None = None,
    ) -> None:
        """Take a step with the gradients, (U, W), of the rows that `wake` was given."""
        self._here.update(slots, ids, gradients, step, marks)
        self._updated = self._lanes.mark("compute")

    def _bring(self, ids: Tensor, *, is_early: bool) -> None:
        """Bring rows for the next batch; see `Occupancy.claim`."""
        with self._lanes.on("cull"):
            claim = self._here.places.claim(ids, is_early=is_early)
            self._wish = max(self._wish, claim.n_wanted)
            n_new, n_old = len(claim.new), len(claim.old)
            if n_new:
                self._lanes.wait("load", self._lanes.mark("cull"))
                with self._trace.on("load", f"load {n_new:,}, store {n_old:,}"):
                    self._here.exchange(claim, self._lanes.stream("load"))
                self._arrived = self._lanes.mark("load")
                self.loaded += n_new
                self.stored += n_old

    # ------------------------------------------------------------------ slots

    def _make_room(self, n_rows: int) -> None:
        """Slots for a batch of so many rows and, if memory allows, for the next one beside it."""
        n, is_limited = self._host.n_rows, self._most is not None
        most = n if self._most is None else self._most
        wanted = min(n, most if is_limited else max(n_rows, self._wish))
        if self.is_open and is_limited and wanted > len(self.values):
            # Memory that is limited has no room for tables beside larger ones: the rows come again.
            self.come_home()
            self.forget()
        if not self.is_open:
            self._host.rest()
        before = self._here.places.n_slots  # fewer than the tables have where memory ran out
        if wanted > before:
            self._lanes.wait("compute", self._arrived)
            self._here.grow(min(math.ceil(wanted * HEADROOM), most))
            if before and self._host.device.type == "cuda":
                # The old tables' memory is too small for the new ones: nothing here wants it.
                torch.cuda.empty_cache()
        if not self.is_open:
            with self._lanes.on("cull"):
                self._here.open(self._lanes.stream("cull"))
            self.is_open = True
        elif wanted > before:
            self._lanes.wait("cull", self._lanes.mark("compute"))
            with self._lanes.on("cull"):
                self._here.places.grow(len(self.values))
        if is_limited and len(self.values) >= n and not self._here.places.is_complete:
            # There are slots for all rows, so that none comes or goes later.
            self._lanes.wait("cull", self._lanes.mark("compute"))
            with self._lanes.on("cull"):
                everything = torch.arange(n, dtype=torch.int32, device=self._host.device)
            self._bring(everything, is_early=False)

    # ------------------------------------------------------------------ see `Away`

    def read_rows(self, ids: Tensor) -> Tensor:
        """See `Away.read_rows`."""
        self._settle()
        return self._here.read(ids)

    def edit(self, ids: Tensor, change: Edit) -> None:
        """See `Away.edit`."""
        self._settle()
        self._here.edit(ids, change)
        self._updated = self._lanes.mark("compute")

    def replace(self, change: Replacement, values: Tensor) -> None:
        """See `Away.replace`. A new row goes on in the slot of the row whose place it takes."""
        self._settle()
        # Its lists are read on ``compute``, too: the memory of the old ones stays theirs till then.
        self._lanes.wait("cull", self._lanes.mark("compute"))
        with self._lanes.on("cull"):
            self._here.follow(change)
        self._lanes.wait("compute", self._lanes.mark("cull"))
        moments = torch.zeros_like(values[:1]).expand_as(values)
        self._here.write(change.placed, [values, moments, moments])
        self._updated = self._lanes.mark("compute")

    def come_home(self) -> None:
        """See `Away.come_home`."""
        if self._here.is_newer:
            self._lanes.wait("cull", self._lanes.mark("compute"))
            self._lanes.wait("cull", self._arrived)
            with self._lanes.on("cull"):
                self._here.store(self._lanes.stream("cull"))

    def forget(self) -> None:
        """See `Away.forget`. Gives the memory back: whoever changes all rows needs some."""
        self.is_open = False
        self._here.clear()

    def _settle(self) -> None:
        """Later work on ``compute`` sees rows and slots as they are."""
        self._lanes.wait("compute", self._arrived)
        self._lanes.wait("compute", self._lanes.mark("cull"))
