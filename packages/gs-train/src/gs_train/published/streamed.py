# SPDX-License-Identifier: Apache-2.0
"""The placement whose rows come for the batch alone, and are updated by the host.

While the device draws microbatch k, rows of k + 1 arrive and complete gradients of k - 1 leave; the
host optimizer updates their rows beside both.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

import gs_order
from gs_train.engine.buffers import RowBuffer
from gs_train.engine.geometry import BatchGeometry
from gs_train.engine.lookahead import EarlyList
from gs_train.engine.microbatches import Seen
from gs_train.engine.placement import Batch, Taken, Tools
from gs_train.engine.settings import StepSettings
from gs_train.engine.sums import BatchSums
from gs_train.options.presets import Preset
from gs_train.published.loads import Loads
from gs_train.published.returning import Returning
from gs_train.published.stores import Stores
from gs_train.published.untouched import Untouched
from gs_train.rows.attributes import columns
from gs_train.rows.initial_sums import InitialSums
from gs_train.rows.tiered import TieredGaussians

RING_BYTES = 256 << 20
"""Page-locked memory for rows on their way, in each direction."""

_AHEAD = 1
"""Microbatches that loads run ahead of drawing."""


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


class StreamedPlacement:
    """A `Placement` with loads, stores and the host's updates beside drawing.

    Args:
        model: the rows; their appearance is in host memory.
        preset: the order, what stays for how long, and whether updates overlap drawing.
        tools: of the engine.
        most_slots: rows on the device at once, where memory sets a limit.
        seed: of the search for an order.
    """

    is_resident = False
    expecting_waits = True

    def __init__(
        self,
        model: TieredGaussians,
        preset: Preset,
        tools: Tools,
        *,
        most_slots: int | None = None,
        seed: int = 0,
    ) -> None:
        host, device = model.host, model.device
        self._model = model
        self._host = host
        self._preset = preset
        self._tools = tools
        self._most_slots = most_slots
        self._seed = seed
        # Two that take turns where rows are kept from one microbatch to the next only.
        n = 2 if preset.retain == "previous" else 1
        self._values = [RowBuffer(host.width, device) for _ in range(n)]
        self._gradients = [RowBuffer(host.width, device) for _ in range(n)]
        self._sums = BatchSums(0, device)
        self._buffers: list[RowBuffer | BatchSums] = [self._sums, *self._values, *self._gradients]
        self._loads = Loads(host, tools.lanes, RING_BYTES)
        self._stores = Stores(host, tools.lanes, RING_BYTES)
        self._last: _Last | None = None
        self._untouched: Untouched | None = None
        if host.adam.semantics == "dense" and preset.overlapped:
            self._untouched = Untouched(host, device)
        self.lists_ahead = int(self._untouched is not None and preset.early_cull)
        self._run: _Run

    @property
    def n_bytes(self) -> int:
        return sum(buffer.n_bytes for buffer in self._buffers)

    def fits(self, n_rows: int) -> bool:
        return True

    # -- a batch -------------------------------------------------------------------------------

    def open(self, batch: Batch) -> np.ndarray:
        self._loads.drop()
        order = self._order(batch)
        plan = self._plan(batch.seen, order)
        self._begin_loads(batch, plan)
        n = plan.n_slots
        values, gradients = ([b.of(n) for b in some] for some in (self._values, self._gradients))
        self._run = _Run(batch, plan, values, gradients)
        return order

    def begin(self, settings: StepSettings, edited: torch.cuda.Event | None) -> int:
        run, lanes, trace = self._run, self._tools.lanes, self._tools.trace
        ids = run.batch.seen.ids
        sums = self._sums.zeros(ids.shape[0]).geometry
        rows, n_rows = self._model.geometry, run.batch.n_rows
        run.geometry = BatchGeometry(rows, ids, settings, self._tools, sums, n_rows)
        self._host.set_rates(settings.rates, betas=settings.betas, eps=settings.eps)
        run.step = self._host.begin()
        for lane in ("load", "store") if self._untouched is None else ("load", "store", "cull"):
            lanes.wait(lane, edited)
        self._load(0)
        with trace.host("find finals"), lanes.on("store"):
            run.on_host = run.plan.to_host()
        return run.step

    def take(self, k: int) -> Taken:
        run, lanes, trace = self._run, self._tools.lanes, self._tools.trace
        lanes.wait("compute", run.loaded[k])
        part = run.plan[k]
        with trace.on("compute", f"take {k}"):
            leaves = run.geometry.take(part.visible, _turn(run.values, k), part.slots)
        if run.batch.turns is not None:  # some more are taken before this one is given
            run.read.append(lanes.mark("compute"))
            self._load_next(k)
        return Taken(part.visible, leaves)

    def give(self, k: int, taken: Taken) -> None:
        run, part, own = self._run, self._run.plan[k], _turn(self._run.gradients, k)
        lanes = self._tools.lanes
        if k > _AHEAD:
            lanes.wait("compute", run.stored[k - 1 - _AHEAD])
        with self._tools.trace.on("compute", f"give {k}"):
            carried = run.carried[(k - 1) % len(run.carried)]
            initial = InitialSums(run.returning.first_sums(part), carried, run.noted)
            place = run.geometry.places(part.visible)
            run.geometry.add(taken.leaves, place, own, part.slots, initial)
            if run.plan.counts["returning"][k]:
                run.returning.put(part.returning, own, part.slots_of("returning"))
        run.given.append(lanes.mark("compute"))
        if run.batch.turns is None:
            run.read.append(run.given[k])
            self._load_next(k)
        self._store(k)

    def tables(self, k: int) -> None:
        return None

    def expect(self, following: EarlyList | None) -> None:
        """Submit the updates of rows that no view sees, first of those that the next batch needs:
        the worker has time for them while the batch is drawn."""
        if self._untouched is None:
            return
        run, name = self._run, "update untouched"
        needed = None if following is None else following.seen.ids
        with self._tools.lanes.on("cull"), self._tools.trace.host(name, track="ahead"):
            run.tickets = self._untouched.update(run.batch.seen.ids, needed, run.step)
        run.needed = following

    def update(self, looked: torch.cuda.Event | None) -> None:
        run, lanes = self._run, self._tools.lanes
        for event in run.stored[-2:]:
            lanes.wait("compute", event)
        updates = (*run.tickets, *self._stores.updates())
        self._last = _Last(run.batch.seen.ids, self._model.edits, updates, run.needed)
        self._tools.stats.count(
            run.batch.seen,
            loaded=int(run.plan.counts["load"].sum()),
            stored=int(run.plan.counts["final"].sum()),
            row_bytes=4 * self._host.width,
            n_slots=run.plan.n_slots,
        )
        n_seen, is_dense = len(run.batch.seen.ids), self._host.adam.semantics == "dense"
        self._tools.stats.count_rows(
            seen=n_seen,
            updated=self._host.n_rows if is_dense else n_seen,
            caught_up=self._loads.n_asleep,
        )
        run.geometry.update(looked)

    def close(self) -> None:
        # The step ends one batch late where rows that no view sees are still being updated.
        self._host.end_before(self._run.step)
        if self._run.needed is None:
            self._host.end(self._run.step)
        del self._run

    def finish(self) -> None:
        self._loads.drop()
        self._stores.finish()
        self._host.rest()

    def leave(self) -> None:
        self.finish()
        self._last = None
        for buffer in self._buffers:
            buffer.release()

    # -- what moves ----------------------------------------------------------------------------

    def _order(self, batch: Batch) -> np.ndarray:
        seen = batch.seen
        n = len(seen.microbatches)
        if batch.turns is not None:  # ranks draw views in one order, and each has other rows
            return batch.order
        if self._preset.order != "tsp" or n <= 2 or not len(seen.ids):
            return np.arange(n)
        return np.asarray(gs_order.order(seen.mask, n_views=n, seed=self._seed))

    def _plan(self, seen: Seen, order: np.ndarray) -> gs_order.Plan:
        retain: str | int = self._preset.retain
        if retain == "last_use" and self._most_slots is not None:
            # A microbatch and the next are on the device at once, whatever the limit: a view that
            # cannot be cut further is not refused.
            pairs = [seen.counts[a] + seen.counts[b] for a, b in pairwise(order)]
            retain = max(self._most_slots, *seen.counts, *pairs)
        return gs_order.plan(seen.ids, seen.mask, order, retain=retain, ahead=_AHEAD)

    def _begin_loads(self, batch: Batch, plan: gs_order.Plan) -> None:
        last = self._last
        if self._untouched is not None and (
            last is None or last.needed is None or last.needed is not batch.early
        ):
            self._host.rest()  # rows of this batch may be among those not updated yet
        if last is not None and last.edits == self._model.edits:
            self._loads.begin(plan, last.touched, last.updates)
            return
        if last is not None:  # its rows may have moved, or else only geometry has been edited
            self._loads.wait_for(last.updates)
        self._loads.begin(plan, None, ())

    def _load_next(self, k: int) -> None:
        """Enqueue the rows of the microbatch behind microbatch k, whose own have been read."""
        if k + 1 < len(self._run.plan):
            self._load(k + 1)

    def _load(self, k: int) -> None:
        """Enqueue the rows of microbatch k."""
        run, lanes, trace = self._run, self._tools.lanes, self._tools.trace
        # The slots that it fills were last read by microbatch k - 2.
        if k > _AHEAD:
            lanes.wait("load", run.read[k - 1 - _AHEAD])
        before = _turn(run.values, k - 1) if len(run.values) == 2 and k else None
        with trace.both(f"load {k}", "load"):
            self._loads.bring(run.plan[k], _turn(run.values, k), before)
        run.loaded.append(lanes.mark("load"))

    def _store(self, k: int) -> None:
        """Enqueue the gradients that are complete after microbatch k."""
        run, lanes, trace = self._run, self._tools.lanes, self._tools.trace
        lanes.wait("store", run.given[k])
        with trace.both(f"store {k}", "store"):
            slots, ids = run.plan[k].slots_of("final"), run.on_host.wait().final[k]
            self._stores.send(_turn(run.gradients, k), slots, ids, step=run.step)
        run.stored.append(lanes.mark("store"))


class _Run:
    """The batch that runs.

    Attributes:
        batch, plan: which, and what moves.
        values, gradients: buffers of the device.
        returning: rows that leave and come back.
        carried, noted: sums of appearance in ``gradients`` and of ``returning``, by attribute.
        geometry: of its rows.
        step: of the host's optimizer.
        on_host: ids of the plan, on their way to the host.
        loaded, read, given, stored: events behind what has been enqueued for each microbatch: its
            rows are there, nobody reads them any more, its gradients are there, and have left.
        needed, tickets: the next batch's early list, and updates of its rows; written by `expect`.
    """

    geometry: BatchGeometry
    step: int
    on_host: gs_order.HostPlan

    def __init__(
        self, batch: Batch, plan: gs_order.Plan, values: list[Tensor], gradients: list[Tensor]
    ) -> None:
        self.batch, self.plan = batch, plan
        self.values, self.gradients = values, gradients
        self.returning = Returning(plan, values[0].shape[1])
        self.carried, self.noted = [columns(g) for g in gradients], columns(self.returning.sums)
        self.loaded: list[torch.cuda.Event | None] = []
        self.read: list[torch.cuda.Event | None] = []
        self.given: list[torch.cuda.Event | None] = []
        self.stored: list[torch.cuda.Event | None] = []
        self.needed: EarlyList | None = None
        self.tickets: tuple[int, ...] = ()


def _turn(buffers: list[Tensor], k: int) -> Tensor:
    """The buffer of microbatch k: one, or two that take turns."""
    return buffers[k % len(buffers)]
