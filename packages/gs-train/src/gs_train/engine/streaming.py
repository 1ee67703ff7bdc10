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
from gs_train.engine.columns import columns
from gs_train.engine.finals import EarlyFinals, Finals
from gs_train.engine.lanes import Lanes
from gs_train.engine.loads import Loads, Updates
from gs_train.engine.model import OffloadedGaussians
from gs_train.engine.need import Parted
from gs_train.engine.preparing import AHEAD, Batch
from gs_train.engine.presets import Preset
from gs_train.engine.stats import BatchStats
from gs_train.engine.stores import Stores
from gs_train.engine.sums import Returning, ReturningSum
from gs_train.engine.trace import Trace
from gs_train.engine.untouched import Untouched
from gs_train.engine.work import Work
from gs_train.row_copies import Begun

RING_BYTES = 256 << 20
"""Page-locked memory for rows on their way, in each direction."""


@dataclass(frozen=True)
class _Last:
    """What the last step has updated, or is about to."""

    touched: Tensor
    edits: int
    updates: Updates


@dataclass(frozen=True)
class _Ahead:
    """What was found out for the next batch while this one began.

    Attributes:
        loads: its load lists; None: not known, or no row sleeps.
        finals: of this batch, what the next one needs first in front.
        untouched: tickets of rows that this batch does not see and the next one needs.
    """

    loads: Parted | None
    finals: Finals
    untouched: tuple[int, ...]


class Streaming:
    """Runs batches with loads, stores and updates beside rendering."""

    def __init__(
        self,
        model: OffloadedGaussians,
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
        self._begun: Batch | None = None  # whose loads are on their way
        self._last: _Last | None = None
        self._untouched: Untouched | None = None
        if model.host.adam.semantics == "dense" and preset.overlapped:
            self._untouched = Untouched(model.host, model.device)

    def open(self, batch: Batch) -> None:
        """Begin the loads, unless that has been done."""
        begun, self._begun = self._begun, None
        if begun is batch:
            return
        self._loads.drop()
        if self._untouched is not None:
            self._model.host.rest()  # rows of this batch may be among those not updated yet
        last, plan = self._last, _plan_of(batch)
        if last is not None and last.edits == self._model.edits:
            everything = Updates(last.updates.all, last.updates.all)
            self._loads.begin(plan, last.touched, everything)
            return
        if last is not None:  # its rows may have moved, or else only geometry has been edited
            self._loads.wait_for(last.updates.all)
        self._loads.begin(plan, None, Updates())

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
            if i >= 1 + AHEAD:
                lanes.wait("load", drawn[i - 1 - AHEAD])
            before = values[(i - 1) % 2] if len(values) == 2 and i else None
            with self._trace.host(f"load {i}"), self._trace.on("load", f"load {i}"):
                self._loads.bring(i, values[i % len(values)], before)
            loaded.append(lanes.mark("load"))

        def draw(i: int) -> None:
            lanes.wait("compute", loaded[i])
            if i >= 1 + AHEAD:
                lanes.wait("compute", stored[i - 1 - AHEAD])
            with self._trace.host(f"draw {i}"), self._trace.on("compute", f"draw {i}"):
                part = plan[i]
                slots, own = part.slots, gradients[i % len(gradients)]
                begun = Begun(_begun_at(part, comes_back), carried[(i - 1) % len(carried)], noted)
                leaves = work.leaves(part.visible, values[i % len(values)], slots)
                work.draw(part.view, part.visible, leaves)
                place = torch.searchsorted(work.sums.ids, part.visible)
                work.add(leaves, place, own, slots, begun)
                if plan.counts["returning"][i]:
                    returning.put(part.returning, own, part.slots_of("returning"))
            drawn.append(lanes.mark("compute"))
            if i + 1 < len(plan):
                load(i + 1)

        def store(i: int, finals: Finals | EarlyFinals) -> None:
            own = gradients[i % len(gradients)]
            lanes.wait("store", drawn[i])
            with self._trace.host(f"store {i}"), self._trace.on("store", f"store {i}"):
                for final in finals.of_microbatch(i):
                    self._stores.send(own, final, step=work.step)
            stored.append(lanes.mark("store"))

        load(0)
        with self._trace.host("find finals"), lanes.on("store"):
            early = EarlyFinals(plan)
        with self._beside.running(lambda: self._look_ahead(work, edited)) as found:
            draw(0)
            # Of the last microbatch it must be known which gradients the next batch needs first.
            while len(drawn) < len(plan) and not found.done():
                store(len(stored), early)
                draw(len(drawn))
        ahead = found.result()
        self._loads.announce(ahead.loads)
        store(len(stored), ahead.finals)
        while len(drawn) < len(plan):
            draw(len(drawn))
            store(len(stored), ahead.finals)
        for event in stored[-2:]:
            lanes.wait("compute", event)
        updates = self._stores.updates().joined(ahead.untouched)
        self._last = _Last(work.batch.seen.ids, self._model.edits, updates)
        self._count(work.batch, plan)

    def close(self, step: int, following: Batch | None) -> None:
        """End the step, or the one before where rows that no view sees are still being updated;
        begin the loads of the next batch, if it is known."""
        host = self._model.host
        is_known = following is not None and following.plan is not None
        host.end_before(step)
        if self._untouched is None or not is_known:
            host.end(step)
        if following is None or following.plan is None:
            return
        assert self._last is not None
        self._loads.begin(following.plan, self._last.touched, self._last.updates)
        self._begun = following

    def finish(self) -> None:
        """Wait for all updates; what is known about the next batch stays known."""
        self._loads.drop()
        self._begun = None
        self._stores.finish()

    def leave(self) -> None:
        """Others will change rows: none is on its way from here, and they want the memory."""
        self.finish()
        self._last = None
        for buffer in (*self._values, *self._gradients):
            buffer.release()

    def _look_ahead(self, work: Work, edited: torch.cuda.Event | None) -> _Ahead:
        """Prepare the next batch, on the ``cull`` lane: the host waits for that and not for what is
        being drawn."""
        plan, ids = _plan_of(work.batch), work.batch.seen.ids
        updated: list[tuple[int, ...]] = []

        def update_untouched(needed: Tensor | None) -> None:
            with self._trace.host("update untouched", track="ahead"):
                updated.append(self._update_untouched(work, needed))

        self._lanes.wait("cull", edited)
        on_seen = None if self._untouched is None else update_untouched
        following = work.look_ahead(edited, plan[len(plan) - 1].final, on_seen)
        next_plan = None if following is None else following.plan
        with self._lanes.on("cull"):
            if not updated:
                update_untouched(None if following is None else following.seen.ids)
            loads = None if next_plan is None else self._loads.lists_of(next_plan, ids)
            finals = Finals.of(plan, next_plan)
        return _Ahead(loads, finals, updated[0])

    def _used(self, buffers: tuple[RowBuffer, RowBuffer]) -> tuple[RowBuffer, ...]:
        """Two that take turns where rows are kept from one microbatch to the next only."""
        return buffers if self._preset.retain == "previous" else buffers[:1]

    def _update_untouched(self, work: Work, needed: Tensor | None) -> tuple[int, ...]:
        """Dense: submit rows that no view sees; tickets of those that the next batch needs."""
        if self._untouched is None:
            return ()
        return self._untouched.update(work.batch.seen.ids, needed, work.step)

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
    """(R,) where the sums of visible rows begin, see `Begun`: those that have just arrived with
    nothing or with what was noted when they left, those of kept rows with what they were."""
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
