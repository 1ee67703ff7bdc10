# SPDX-License-Identifier: Apache-2.0
"""Batches whose rows are all on the device, where they are updated."""

from __future__ import annotations

import torch
from torch import Tensor

from gs_train.engine.beside import Beside
from gs_train.engine.buffers import RowBuffer
from gs_train.engine.in_place import InPlace
from gs_train.engine.lanes import Lanes
from gs_train.engine.places import Places
from gs_train.engine.planner import Batch
from gs_train.engine.residents import Residents
from gs_train.engine.stats import BatchStats
from gs_train.engine.trace import Trace
from gs_train.engine.work import Work
from gs_train.rows.tiered import TieredGaussians


class Residing:
    """Runs batches on rows in slots: those of the next batch arrive while this one renders.

    Args:
        model: the rows.
        residents: who has the slots: all rows have one, or those that batches want.
        lanes, stats, trace, beside: of the engine.
    """

    def __init__(
        self,
        model: TieredGaussians,
        residents: Residents | InPlace,
        lanes: Lanes,
        stats: BatchStats,
        trace: Trace,
        beside: Beside,
    ) -> None:
        self._lanes = lanes
        self._appearance = model.appearance
        self._residents = residents
        self._beside = beside
        self._sums = RowBuffer(model.appearance.width, model.device)
        self._stats = stats
        self._trace = trace
        self._counted = 0, 0  # rows loaded and stored, of the batches before

    def open(self, batch: Batch) -> None:
        """Bring what is still missing."""
        with self._trace.host("bring"), self._trace.on("cull", "bring"):
            self._slots = self._residents.bring(batch.seen.ids)

    def run(self, work: Work) -> None:
        """Render all microbatches, then update the rows."""
        residents, seen, slots = self._residents, work.batch.seen, self._slots
        with self._trace.host("wake"):
            edited = self._lanes.mark("compute")
            with self._trace.on("compute", "wake"):
                counts = self._stats.counts_on(slots.device)
                residents.wake(slots, seen.ids, work.step, work.batch.marks, counts)
            n_rows = seen.ids.shape[0]
            sums = self._sums.of(n_rows)[:n_rows].zero_()
            places = Places(seen, slots)
        # Looking ahead waits for the geometry, which is ready unless the device is behind.
        waits = not self._lanes.has_passed(edited)
        with self._beside.running(lambda: self._look_ahead(work, edited), waits=waits):
            for i in work.batch.order.tolist():
                with self._trace.host(f"draw {i}"), self._trace.on("compute", f"draw {i}"):
                    self._draw(i, places, work, sums)
        name = "update appearance"
        with self._trace.host(name), self._trace.on("compute", name):
            residents.update(slots, seen.ids, sums, work.step, work.batch.marks)
        self._stats.count(
            seen,
            loaded=residents.loaded - self._counted[0],
            stored=residents.stored - self._counted[1],
            row_bytes=residents.row_bytes,
            n_slots=residents.values.shape[0],
        )
        self._counted = residents.loaded, residents.stored

    def close(self, step: int) -> None:
        """End the step: updates are in the order of the device's streams."""
        self._appearance.end(step)

    def finish(self) -> None:
        """Bring the rows home; they stay here as well."""
        self._residents.come_home()

    def leave(self) -> None:
        """Others will change rows: none of them stays here."""
        self._residents.come_home()
        self._residents.forget()
        self._sums.release()

    def _look_ahead(self, work: Work, edited: torch.cuda.Event | None) -> None:
        following = work.look_ahead(edited)
        if following is not None and self._residents.fits(following.seen.ids.shape[0]):
            with self._trace.host("bring the next", track="ahead"):
                self._residents.bring_early(following.seen.ids)
        work.look_further(edited)

    def _draw(self, i: int, places: Places, work: Work, sums: Tensor) -> None:
        drawn = places.of(i)
        leaves = work.leaves(drawn.ids, self._residents.values, drawn.slots)
        work.draw(i, drawn.ids, leaves)
        work.add(leaves, drawn.place, sums, drawn.place)
