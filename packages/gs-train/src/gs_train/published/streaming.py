# SPDX-License-Identifier: Apache-2.0
"""Batches whose rows come for the batch alone, and are updated by the host.

While the device renders microbatch i, rows of i + 1 arrive and complete gradients of i - 1 leave;
the host optimizer updates their rows beside both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import gs_order
from gs_train.engine.beside import Beside
from gs_train.engine.buffers import RowBuffer
from gs_train.engine.lanes import Lanes
from gs_train.engine.lookahead import EarlyList
from gs_train.engine.planner import LOADS_AHEAD, Batch
from gs_train.engine.stats import BatchStats
from gs_train.engine.sums import Returning, ReturningSum
from gs_train.engine.trace import Trace
from gs_train.engine.work import Work
from gs_train.options.presets import Preset
from gs_train.published.finals import Finals
from gs_train.published.loads import Loads
from gs_train.published.stores import Stores
from gs_train.published.untouched import Untouched
from gs_train.rows.attributes import columns
from gs_train.rows.initial_sums import InitialSums
from gs_train.rows.tiered import TieredGaussians

RING_BYTES = 256 << 20
"""Page-locked memory for rows on their way, in each direction."""


@dataclass(frozen=True)
class _Last:
    """What the last step has updated, or is about to.

    Attributes:
        touched: (U,) sorted rows that it saw.
        edits: of the model when it ended.
        updates: tickets.
        needed: the next batch's rows, of which those that it did not see have been updated as well;
            None: it does not matter, or nothing is known of the next batch.
    """

    touched: Tensor
    edits: int
    updates: tuple[int, ...]
    needed: EarlyList | None


class Streaming:
    """Runs batches with loads, stores and updates beside rendering."""

    def __init__(
        self,
        model: TieredGaussians,
        preset: Preset,
        lanes: Lanes,
        stats: BatchStats,
        trace: Trace,
        beside: Beside,
    ) -> None:
        self._model = model
        self._preset = preset
        self._lanes = lanes
        self._stats = stats
        self._trace = trace
        self._beside = beside
        width = model.host.width
        self._values = (RowBuffer(width, model.device), RowBuffer(width, model.device))
        self._gradients = (RowBuffer(width, model.device), RowBuffer(width, model.device))
        self._loads = Loads(model.host, lanes, RING_BYTES)
        self._stores = Stores(model.host, lanes, RING_BYTES)
        self._last: _Last | None = None
        self._untouched: Untouched | None = None
        if model.host.adam.semantics == "dense" and preset.overlapped:
            self._untouched = Untouched(model.host, model.device)

    def open(self, batch: Batch) -> None:
        """Begin the loads."""
        self._loads.drop()
        last, plan = self._last, _plan_of(batch)
        if self._untouched is not None and (
            last is None or last.needed is None or last.needed is not batch.early
        ):
            self._model.host.rest()  # rows of this batch may be among those not updated yet
        if last is not None and last.edits == self._model.edits:
            self._loads.begin(plan, last.touched, last.updates)
            return
        if last is not None:  # its rows may have moved, or else only geometry has been edited
            self._loads.wait_for(last.updates)
        self._loads.begin(plan, None, ())

    def run(self, work: Work) -> None:
        """Load, render and store, microbatch by microbatch."""
        plan, lanes = _plan_of(work.batch), self._lanes
        comes_back = work.batch.returning
        assert comes_back is not None
        drawn: list[torch.cuda.Event | None] = []
        stored: list[torch.cuda.Event | None] = []
        loaded: list[torch.cuda.Event | None] = []
        with self._trace.host("begin batch"):
            values = [buffer.of(plan.n_slots) for buffer in self._used(self._values)]
            gradients = [buffer.of(plan.n_slots) for buffer in self._used(self._gradients)]
            returning = ReturningSum(comes_back, self._model.host.width)
            carried, noted = [columns(sums) for sums in gradients], columns(returning.rows)
            edited = lanes.mark("compute")
            for lane in ("load", "store"):
                lanes.wait(lane, edited)

        def load(i: int) -> None:
            # The slots that it fills were last read by microbatch i - 2.
            if i >= 1 + LOADS_AHEAD:
                lanes.wait("load", drawn[i - 1 - LOADS_AHEAD])
            before = values[(i - 1) % 2] if len(values) == 2 and i else None
            with self._trace.host(f"load {i}"), self._trace.on("load", f"load {i}"):
                self._loads.bring(i, values[i % len(values)], before)
            loaded.append(lanes.mark("load"))

        def draw(i: int) -> None:
            lanes.wait("compute", loaded[i])
            if i >= 1 + LOADS_AHEAD:
                lanes.wait("compute", stored[i - 1 - LOADS_AHEAD])
            with self._trace.host(f"draw {i}"), self._trace.on("compute", f"draw {i}"):
                part = plan[i]
                slots, own = part.slots, gradients[i % len(gradients)]
                begun = InitialSums(
                    _begun_at(part, comes_back), carried[(i - 1) % len(carried)], noted
                )
                leaves = work.leaves(part.visible, values[i % len(values)], slots)
                work.draw(part.view, part.visible, leaves)
                place = torch.searchsorted(work.sums.ids, part.visible)
                work.add(leaves, place, own, slots, begun)
                if plan.counts["returning"][i]:
                    returning.put(part.returning, own, part.slots_of("returning"))
            drawn.append(lanes.mark("compute"))
            if i + 1 < len(plan):
                load(i + 1)

        def store(i: int) -> None:
            own = gradients[i % len(gradients)]
            lanes.wait("store", drawn[i])
            with self._trace.host(f"store {i}"), self._trace.on("store", f"store {i}"):
                self._stores.send(own, finals.of_microbatch(i), step=work.step)
            stored.append(lanes.mark("store"))

        load(0)
        with self._trace.host("find finals"), lanes.on("store"):
            finals = Finals(plan)
        updates_all = self._untouched is not None
        with self._beside.running(
            lambda: self._update_untouched(work, edited), waits=updates_all
        ) as found:
            for i in range(len(plan)):
                draw(i)
                store(i)
        for event in stored[-2:]:
            lanes.wait("compute", event)
        needed, tickets = found.result()
        updates = (*tickets, *self._stores.updates())
        self._last = _Last(work.batch.seen.ids, self._model.edits, updates, needed)
        self._count(work.batch, plan)

    def close(self, step: int) -> None:
        """End the step, or the one before where rows that no view sees are still being updated."""
        host = self._model.host
        host.end_before(step)
        if self._last is None or self._last.needed is None:
            host.end(step)

    def finish(self) -> None:
        """Wait for all updates."""
        self._loads.drop()
        self._stores.finish()

    def leave(self) -> None:
        """Others will change rows: none is on its way from here, and they want the memory."""
        self.finish()
        self._last = None
        for buffer in (*self._values, *self._gradients):
            buffer.release()

    def _used(self, buffers: tuple[RowBuffer, RowBuffer]) -> tuple[RowBuffer, ...]:
        """Two that take turns where rows are kept from one microbatch to the next only."""
        return buffers if self._preset.retain == "previous" else buffers[:1]

    def _update_untouched(
        self, work: Work, edited: torch.cuda.Event | None
    ) -> tuple[EarlyList | None, tuple[int, ...]]:
        """Dense: submit rows that no view sees, those first that the next batch needs: its early
        list, found on the ``cull`` lane, and the tickets of its rows."""
        if self._untouched is None:
            return None, ()
        self._lanes.wait("cull", edited)
        following = work.look_ahead(edited)
        needed = None if following is None else following.seen.ids
        name = "update untouched"
        with self._lanes.on("cull"), self._trace.host(name, track="ahead"):
            tickets = self._untouched.update(work.batch.seen.ids, needed, work.step)
        return following, tickets

    def _count(self, batch: Batch, plan: gs_order.Plan) -> None:
        host = self._model.host
        self._stats.count(
            batch.seen,
            loaded=int(plan.counts["load"].sum()),
            stored=int(plan.counts["final"].sum()),
            row_bytes=4 * host.width,
            n_slots=plan.n_slots,
            caught_up=self._loads.n_asleep,
            updated=host.n_rows if host.adam.semantics == "dense" else None,
        )


def _plan_of(batch: Batch) -> gs_order.Plan:
    assert batch.plan is not None
    return batch.plan


def _begun_at(part: gs_order.Step, returning: Returning) -> Tensor:
    """(R,) `InitialSums.at` of visible rows: rows that have just arrived begin with nothing, or
    with the sum that was noted when they left; kept rows begin with the sum that they had."""
    first, last = part.plan.ids["load"].offsets[part.index : part.index + 2]
    arrived = returning.of_loads[first:last]
    if len(arrived) == len(part.visible):
        return arrived
    if part.plan.slots is None:
        at = torch.empty_like(part.slots)
        at.index_copy_(0, part.positions("retain").long(), part.retain_sources)
    else:
        at = part.slots.clone()
    return at.index_copy_(0, part.positions("load").long(), arrived)
