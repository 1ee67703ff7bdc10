# SPDX-License-Identifier: Apache-2.0
"""The placement whose rows are in slots of the device, where they are updated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gs_train.engine.geometry import BatchGeometry
from gs_train.engine.lookahead import EarlyList
from gs_train.engine.placement import Batch, Taken, Tools
from gs_train.engine.places import Places
from gs_train.engine.residents import Residents
from gs_train.engine.settings import StepSettings
from gs_train.engine.sums import BatchSums, Sums
from gs_train.renderers.tables import TableRows
from gs_train.rows.device_appearance import DeviceAppearance
from gs_train.rows.tiered import TieredGaussians


class SlotPlacement:
    """A `Placement`: rows of the next batch arrive while this one is drawn.

    Args:
        model: the rows.
        slots: where rows of appearance are: all rows have a slot, or those that batches want.
        tools: of the engine.
        lists_ahead: see `Placement`.
    """

    is_resident = True
    expecting_waits = False

    def __init__(
        self,
        model: TieredGaussians,
        slots: Residents | HomeSlots,
        tools: Tools,
        *,
        lists_ahead: int,
    ) -> None:
        self.lists_ahead = lists_ahead
        self._model = model
        self._slots = slots
        self._tools = tools
        self._sums = BatchSums(model.appearance.width, model.device)
        self._counted = 0, 0  # rows loaded and stored, of the batches before
        self._batch: Batch
        self._at: Tensor  # slots of its rows
        self._run: _Run

    @property
    def n_bytes(self) -> int:
        return self._sums.n_bytes + self._slots.n_bytes

    @property
    def sums_bytes(self) -> int:
        """Those of `n_bytes` that gradients take."""
        return self._sums.n_bytes

    def fits(self, n_rows: int) -> bool:
        return self._slots.fits(n_rows)

    def open(self, batch: Batch) -> np.ndarray:
        trace = self._tools.trace
        with trace.both("bring", "cull"):
            self._at = self._slots.bring(batch.seen.ids)
        self._batch = batch
        return batch.order

    def begin(self, settings: StepSettings, edited: torch.cuda.Event | None) -> int:
        seen, marks, trace = self._batch.seen, self._batch.marks, self._tools.trace
        sums = self._sums.zeros(seen.ids.shape[0])
        rows = self._model.geometry
        n_rows = self._batch.n_rows
        geometry = BatchGeometry(rows, seen.ids, settings, self._tools, sums.geometry, n_rows)
        appearance = self._model.appearance
        appearance.set_rates(settings.rates, betas=settings.betas, eps=settings.eps)
        step = appearance.begin()
        with trace.both("wake"):
            counts = self._tools.stats.counts_on(self._model.device)
            self._slots.wake(self._at, seen.ids, step, marks, counts)
        tables = {**rows.columns, **self._slots.columns}
        self._run = _Run(geometry, step, tables, sums, Places(seen, self._at, self._batch.order))
        return step

    def take(self, k: int) -> Taken:
        run = self._run
        with self._tools.trace.on("compute", f"take {k}"):
            drawn = run.places.of(int(self._batch.order[k]))
            leaves = run.geometry.take(drawn.ids, self._slots.values, drawn.slots)
        return Taken(drawn.ids, leaves, drawn.place)

    def give(self, k: int, taken: Taken) -> None:
        run, place = self._run, taken.place
        with self._tools.trace.on("compute", f"give {k}"):
            run.geometry.add(taken.leaves, place, run.sums.appearance, place)

    def tables(self, k: int) -> TableRows:
        run = self._run
        with self._tools.trace.on("compute", f"take {k}"):
            drawn = run.places.of(int(self._batch.order[k]))
        return TableRows(
            columns=run.columns,
            ids=drawn.ids,
            slots=drawn.slots,
            keys=self._model.keys.values,
            sums=run.sums.by_attribute,
            place=drawn.place,
        )

    def expect(self, following: EarlyList | None) -> None:
        if following is not None and self._slots.fits(following.seen.ids.shape[0]):
            with self._tools.trace.host("bring the next", track="ahead"):
                self._slots.bring_early(following.seen.ids)

    def update(self, looked: torch.cuda.Event | None) -> None:
        run, slots, name = self._run, self._slots, "update appearance"
        seen, marks, trace = self._batch.seen, self._batch.marks, self._tools.trace
        with trace.both(name):
            slots.update(self._at, seen.ids, run.sums.appearance, run.step, marks)
        self._tools.stats.count(
            seen,
            loaded=slots.loaded - self._counted[0],
            stored=slots.stored - self._counted[1],
            row_bytes=slots.row_bytes,
            n_slots=slots.values.shape[0],
        )
        self._counted = slots.loaded, slots.stored
        run.geometry.update(looked)

    def close(self) -> None:
        # Updates are in the order of the device's streams.
        self._model.appearance.end(self._run.step)
        del self._run, self._batch, self._at

    def finish(self) -> None:
        self._slots.come_home()
        self._model.appearance.rest()

    def leave(self) -> None:
        self.finish()
        self._slots.forget()
        self._sums.release()


class _Run(NamedTuple):
    """The batch that runs.

    Attributes:
        geometry: of its rows.
        step: of the optimizer.
        columns: the attributes where they lie.
        sums: gradients of its rows.
        places: of its microbatches.
    """

    geometry: BatchGeometry
    step: int
    columns: Mapping[str, Tensor]
    sums: Sums
    places: Places


class HomeSlots:
    """What `Residents` is, over rows whose home is the device: a row's slot is its id.

    Attributes:
        loaded, stored: rows that have come and gone: none.
    """

    loaded = stored = n_bytes = row_bytes = 0

    def __init__(self, appearance: DeviceAppearance) -> None:
        self._appearance = appearance

    @property
    def values(self) -> Tensor:
        """(N, W) rows of ``sh0`` and ``shN``."""
        return self._appearance.values

    @property
    def columns(self) -> Mapping[str, Tensor]:
        """(N, ...) the same by attribute."""
        return self._appearance.columns

    def fits(self, n_rows: int) -> bool:
        """Every batch does."""
        return True

    def bring_early(self, ids: Tensor) -> None:
        """Rows are here."""

    def bring(self, ids: Tensor) -> Tensor:
        """(U,) int32 slots of rows."""
        return ids

    def wake(
        self,
        slots: Tensor,
        ids: Tensor,
        step: int,
        marks: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        """See `Residents.wake`."""
        self._appearance.wake(ids, step, marks, counts)

    def update(
        self,
        slots: Tensor,
        ids: Tensor,
        gradients: Tensor,
        step: int,
        marks: Tensor | None = None,
    ) -> None:
        """See `Residents.update`."""
        self._appearance.update(ids, gradients, step, marks)

    def come_home(self) -> None:
        """Rows are at home."""

    def forget(self) -> None:
        """Nothing is kept beside the rows."""
