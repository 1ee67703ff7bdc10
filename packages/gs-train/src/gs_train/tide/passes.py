# SPDX-License-Identifier: Apache-2.0
"""The placement of batches that see more rows than the device has room for at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gs_train.blocks.rows_in_turns import Census
from gs_train.blocks.stored_rows import StoredRows
from gs_train.engine.geometry import penalties
from gs_train.engine.lookahead import EarlyList
from gs_train.engine.placement import Batch, Taken, Tools
from gs_train.engine.places import Places
from gs_train.engine.settings import StepSettings
from gs_train.rows.attributes import NAMES
from gs_train.tide.home_sums import HomeSums
from gs_train.tide.placement import BlockCounts, check_settings
from gs_train.tide.room import BatchRoom


class BlockPasses:
    """A `Placement`: the rows of one microbatch at a time are on the device, and gradients go to
    host memory, from where blocks are updated some at a time.

    Each microbatch is drawn from copies of its rows. Sums have the bits of a batch that runs at
    once, for microbatches that are whole views.

    Args:
        rows: in blocks.
        tools: of the engine.
        counts: of the batches.
        room: that a microbatch fits into.
    """

    is_resident = True
    lists_ahead = 1
    expecting_waits = True  # for boxes of the step before

    def __init__(
        self, rows: StoredRows, tools: Tools, counts: BlockCounts, room: BatchRoom
    ) -> None:
        self._rows = rows
        self._tools = tools
        self._counts = counts
        self._room = room
        self._census: Census | None = None
        self._batch: Batch
        self._settings: StepSettings
        self._places: Places
        self._sums: HomeSums
        self._like: dict[str, Tensor]

    @property
    def keys(self) -> Tensor | None:
        """(U,) int32 of the rows of the batch that runs here; None: there is none."""
        return None if self._census is None else self._census.keys

    def take_over(self, census: Census) -> None:
        """What the batch that begins sees."""
        self._census = census

    def fits(self, n_rows: int) -> bool:
        """Every batch does that the planner gives it."""
        return True

    def open(self, batch: Batch) -> np.ndarray:
        self._batch = batch
        return batch.order

    def begin(self, settings: StepSettings, edited: torch.cuda.Event | None) -> int:
        check_settings(self._rows, settings)
        self._settings = settings
        seen = self._batch.seen
        self._places = Places(seen, seen.ids, self._batch.order)
        losses = penalties(settings, self._batch.n_rows)
        self._sums = HomeSums(losses, self._rows.block_rows, self._rows.device)
        self._like = {}
        return self._rows.step + 1

    def take(self, k: int) -> Taken:
        drawn = self._places.of(int(self._batch.order[k]))
        with self._tools.trace.both("bring rows"):
            values = self._rows.in_turns.values(self._numbers(drawn.place))
        self._like = {name: values[name][:0] for name in NAMES}
        leaves = {name: values[name].requires_grad_() for name in NAMES}
        return Taken(drawn.ids, leaves, drawn.place)

    def give(self, k: int, taken: Taken) -> None:
        with self._tools.trace.both("bring gradients home"):
            self._sums.add(self._numbers(taken.place), taken.leaves)

    def tables(self, k: int) -> None:
        """Rows are in tables no longer than they are copied."""

    def expect(self, following: EarlyList | None) -> None:
        """Blocks come by what looks ahead."""

    def update(self, looked: torch.cuda.Event | None) -> None:
        parts = self._sums.parts(
            self._like,
            most_rows=self._room.most_rows,
            most_blocks=self._rows.in_turns.most_blocks,
        )
        with self._tools.trace.both("update rows"):
            self._rows.in_turns.update(parts, self._settings.rates)
        self._counts.count(self._batch.seen, len(self._batch.seen.ids))

    def close(self) -> None:
        self._census = None
        del self._sums, self._places, self._batch, self._like
        self._counts.end()

    def finish(self) -> None:
        """Rows are at home where they lie."""

    def leave(self) -> None:
        """Nothing is kept from batch to batch."""
        self._census = None

    @property
    def n_bytes(self) -> int:
        return self._rows.cache.n_slots * self._rows.block_rows * self._rows.row_bytes

    def _numbers(self, place: Tensor | None) -> Tensor:
        """(R,) numbers of rows that are among the batch's at these places."""
        assert self._census is not None
        rows = self._census.rows
        return rows if place is None else rows.index_select(0, place)
