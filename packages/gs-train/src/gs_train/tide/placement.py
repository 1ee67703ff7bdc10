# SPDX-License-Identifier: Apache-2.0
"""The placement whose rows lie in blocks, of which a few are in memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gs_train.blocks.stored_rows import Look, StoredRows
from gs_train.engine.geometry import add_to, penalties
from gs_train.engine.lookahead import EarlyList
from gs_train.engine.microbatches import Seen
from gs_train.engine.placement import Batch, Taken, Tools
from gs_train.engine.places import Places
from gs_train.engine.settings import StepSettings
from gs_train.engine.stats import BatchStats
from gs_train.engine.sums import BatchSums, Sums
from gs_train.errors import InputError
from gs_train.renderers.tables import TableRows
from gs_train.rows.attributes import NAMES
from gs_train.tide.foresight import Foresight


class BlockCounts:
    """Counts batches of rows in blocks, and the blocks that move for these.

    Args:
        rows: in blocks.
        stats: of the engine.

    Attributes:
        foresight: hears of each batch that has ended; None: nobody does.
    """

    def __init__(self, rows: StoredRows, stats: BatchStats) -> None:
        self.foresight: Foresight | None = None
        self._rows = rows
        self._stats = stats
        self._counted = rows.cache.stats

    def count(self, seen: Seen, n_seen: int) -> None:
        """A batch has ended, which listed these rows, and saw so many of them."""
        before, now = self._counted, self._rows.cache.stats
        self._stats.count_rows(seen=n_seen, updated=n_seen)
        self._stats.count(
            seen,
            loaded=(now.loaded - before.loaded) * self._rows.block_rows,
            stored=(now.evicted - before.evicted) * self._rows.block_rows,
            row_bytes=self._rows.row_bytes,
            n_slots=self._rows.cache.n_slots * self._rows.block_rows,
        )
        self._counted = now

    def end(self) -> None:
        """A batch has ended, and its blocks may leave."""
        if self.foresight is not None:
            self.foresight.after_update()


def check_settings(rows: StoredRows, settings: StepSettings) -> None:
    """Raise an InputError where a step is not one that rows in blocks can take."""
    if (settings.betas, settings.eps) != (rows.betas, rows.eps):
        raise InputError(
            f"rows in blocks must keep Adam's betas and eps, {rows.betas} and {rows.eps:g}, "
            f"got {settings.betas} and {settings.eps:g}"
        )
    if settings.regularise_all and (settings.opacity_reg or settings.scale_reg):
        raise InputError("rows in blocks need weights of 0 for losses of all rows")


class BlockPlacement:
    """A `Placement`: a batch draws copies of its rows that are up to date, and updates the rows in
    their blocks, catching them up in the same pass.

    Args:
        rows: in blocks.
        tools: of the engine.
        counts: of the batches.
    """

    is_resident = True
    lists_ahead = 1
    expecting_waits = True  # for boxes of the step before

    def __init__(self, rows: StoredRows, tools: Tools, counts: BlockCounts) -> None:
        self._rows = rows
        self._tools = tools
        self._counts = counts
        self._sums = BatchSums(rows.appearance_width, rows.device)
        self._look: Look | None = None
        self._batch: Batch
        self._settings: StepSettings
        self._own: Sums
        self._places: Places

    @property
    def keys(self) -> Tensor | None:
        """(U,) int32 of the rows of the batch that runs here; None: there is none."""
        return None if self._look is None else self._look.keys

    def take_over(self, look: Look) -> None:
        """What the batch that begins sees."""
        self._let_go()
        self._look = look

    def fits(self, n_rows: int) -> bool:
        """Every batch does that the planner gives it."""
        return True

    def open(self, batch: Batch) -> np.ndarray:
        self._batch = batch
        return batch.order

    def begin(self, settings: StepSettings, edited: torch.cuda.Event | None) -> int:
        seen = self._batch.seen
        check_settings(self._rows, settings)
        self._settings = settings
        self._own = self._sums.zeros(len(seen.ids))
        self._places = Places(seen, seen.ids, self._batch.order)
        return self._rows.step + 1

    def take(self, k: int) -> Taken:
        drawn = self._places.of(int(self._batch.order[k]))
        assert self._look is not None
        rows = self._look.rows
        leaves = {
            name: (rows[name].clone() if drawn.place is None else rows[name][drawn.place])
            for name in NAMES
        }
        return Taken(drawn.ids, {n: v.requires_grad_() for n, v in leaves.items()}, drawn.place)

    def give(self, k: int, taken: Taken) -> None:
        for name, sums in self._own.by_attribute.items():
            grad = taken.leaves[name].grad
            if grad is None:
                continue
            if taken.place is None:
                sums += grad
            else:
                sums.index_add_(0, taken.place, grad)

    def tables(self, k: int) -> TableRows | None:
        drawn = self._places.of(int(self._batch.order[k]))
        assert self._look is not None
        return TableRows(
            columns=self._look.rows,
            ids=drawn.ids,
            slots=drawn.slots,
            keys=self._look.keys,
            sums=self._own.by_attribute,
            place=drawn.place,
        )

    def expect(self, following: EarlyList | None) -> None:
        """Blocks come by what looks ahead."""

    def update(self, looked: torch.cuda.Event | None) -> None:
        look, settings, sums = self._look, self._settings, self._own.by_attribute
        assert look is not None
        add_to(sums, look.rows, penalties(settings, self._batch.n_rows))
        self._look = None
        with self._tools.trace.both("update rows"):
            self._rows.update(look, sums, settings.rates)
        self._counts.count(self._batch.seen, look.n_seen)

    def close(self) -> None:
        del self._own, self._places, self._batch
        self._counts.end()

    def finish(self) -> None:
        """Rows are at home where they lie."""
        self._let_go()

    def leave(self) -> None:
        self._let_go()
        self._sums.release()

    @property
    def n_bytes(self) -> int:
        n_rows = self._rows.cache.n_slots * self._rows.block_rows
        return n_rows * self._rows.row_bytes + self._sums.n_bytes

    def _let_go(self) -> None:
        if self._look is not None:  # of a batch that did not begin
            look, self._look = self._look, None
            self._rows.leave(look)
