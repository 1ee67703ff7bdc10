# SPDX-License-Identifier: Apache-2.0
"""The engine: batches whose appearance rows live in host memory.

While the device renders microbatch i, rows of i + 1 arrive and complete gradients of i - 1 leave;
the host optimizer updates their rows beside both. A preset chooses the order, what stays on the
device, and how the host optimizer treats rows that nobody sees; what is computed is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

import gs_adam
import gs_order
from gs_cull import Inflate
from gs_train.engine.ahead import pack, unpack
from gs_train.engine.backend import Observe, StepSettings
from gs_train.engine.buffers import RowBuffer
from gs_train.engine.columns import columns
from gs_train.engine.drawing import Drawing
from gs_train.engine.early import largest_move
from gs_train.engine.finals import Finals
from gs_train.engine.lanes import Lanes
from gs_train.engine.loads import Loads, Updates
from gs_train.engine.microbatches import Seen, least_shared, look
from gs_train.engine.model import OffloadedGaussians
from gs_train.engine.presets import Preset
from gs_train.engine.regularise import add_to, penalties
from gs_train.engine.selective import SelectiveAdam
from gs_train.engine.stats import BatchStats
from gs_train.engine.stores import Stores
from gs_train.engine.sums import CompactSum, ReturningSum
from gs_train.engine.trace import Trace
from gs_train.renderers import Renderer, View

_AHEAD = 1  # microbatches that loads run ahead of rendering
_RING_BYTES = 256 << 20


@dataclass(frozen=True)
class _Batch:
    """A batch that can run: what it sees, in which order, and what moves."""

    names: tuple[str, ...]
    edits: int
    seen: Seen
    order: np.ndarray
    plan: gs_order.Plan


@dataclass(frozen=True)
class _Last:
    """What the last step has updated, or is about to."""

    touched: Tensor
    edits: int
    updates: Updates


class Engine:
    """A `Backend` for models whose appearance is in host memory.

    Args:
        model: the rows.
        renderer: draws them, on the model's device.
        preset: how.
        most_rows: of one microbatch: views that see more are cut into crops; None for no limit.
        most_share: the same as a share of all rows.
        most_slots: rows that the device holds at once, for presets that keep rows to their last
            use; None for all of a batch.
        seed: of the search for an order.

    Attributes:
        stats: what has moved so far.
        trace: see `Trace`.
    """

    def __init__(
        self,
        model: OffloadedGaussians,
        renderer: Renderer,
        preset: Preset,
        *,
        most_rows: int | None = None,
        most_share: float | None = None,
        most_slots: int | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self._renderer = renderer
        self._preset = preset
        self._most_rows = most_rows
        self._most_share = most_share
        self._retain: str | int = preset.retain
        if most_slots is not None and preset.retain == "last_use":
            self._retain = most_slots
        self._seed = seed
        self._lanes = Lanes(model.device)
        width = model.host.width
        self._values = (RowBuffer(width, model.device), RowBuffer(width, model.device))
        self._gradients = (RowBuffer(width, model.device), RowBuffer(width, model.device))
        self._loads = Loads(model.host, self._lanes, _RING_BYTES)
        self._stores = Stores(model.host, self._lanes, _RING_BYTES)
        self._next: _Batch | None = None
        self._is_whole = True
        self._is_begun = False  # whether loads of the next batch are on their way
        self._expected: dict[str, Tensor] = {}
        self._last: _Last | None = None
        self.stats = BatchStats(row_bytes=4 * width)
        self.trace = Trace(self._lanes, model.host.worker)

    def step(
        self,
        batch: Sequence[tuple[View, Tensor]],
        settings: StepSettings,
        observe: Observe,
        *,
        upcoming: Sequence[View] = (),
    ) -> Tensor:
        """See `Backend.step`."""
        self._check_whole()
        host = self.model.host
        self._set_options(settings)
        with self.trace.host("prepare"):
            ready = self._prepared([view for view, _ in batch])
        self._is_whole = False
        step = host.begin()
        self._begin_untouched(ready, step)
        loss = self._run(ready, batch, settings, observe, step, upcoming)
        with self.trace.host("update geometry"), self.trace.on("compute", "update geometry"):
            self._update_geometry(ready, settings)
        with self.trace.host("end step"):
            host.end(step)
        self.stats.add(ready.plan, len(ready.seen.ids))
        updates = self._stores.updates()
        if len(ready.plan) == 1:  # sent before it was known what the next batch needs first
            updates = Updates(updates.all, updates.all)
        self._last = _Last(ready.seen.ids, self.model.edits, updates)
        if self._next is not None:
            self._loads.begin(self._next.plan, ready.seen.ids, self._last.updates)
            self._is_begun = True
        self._is_whole = True
        return loss

    def finish(self) -> None:
        """See `Backend.finish`. What is known about the next batch stays known."""
        self._check_whole()
        self._loads.drop()
        self._is_begun = False
        self._stores.finish()
        self.model.host.rest()

    def ahead(self) -> dict[str, Tensor]:
        """See `Backend.ahead`."""
        early = self._next
        if early is None or early.edits != self.model.edits:
            return {}
        return pack(early.seen, early.order)

    def expect(self, tensors: Mapping[str, Tensor]) -> None:
        """See `Backend.expect`."""
        self._expected = dict(tensors)

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise RuntimeError(
                "an earlier batch ended in the middle, some of its rows updated and others not: "
                "go on from the last checkpoint"
            )

    # -- before a batch ------------------------------------------------------------------------

    def _prepared(self, views: Sequence[View]) -> _Batch:
        """The batch as it was prepared early, when that still holds, or prepared now."""
        early, self._next = self._next, None
        names = tuple(view.name for view in views)
        holds = early is not None and early.names == names and early.edits == self.model.edits
        is_begun, self._is_begun = self._is_begun, False
        if early is not None and holds and is_begun:
            return early
        self._loads.drop()
        ready = early if early is not None and holds else self._resumed(views)
        ready = ready or self._prepare(views, None, None)
        last = self._last
        if last is None or last.edits != self.model.edits:
            self._loads.begin(ready.plan, None, Updates())
        else:
            everything = Updates(last.updates.all, last.updates.all)
            self._loads.begin(ready.plan, last.touched, everything)
        return ready

    def _resumed(self, views: Sequence[View]) -> _Batch | None:
        """The batch that a checkpoint had prepared."""
        expected, self._expected = self._expected, {}
        found = unpack(expected, views, self.model.device) if expected else None
        return None if found is None else self._planned(views, *found)

    def _prepare(
        self, views: Sequence[View], inflate: Inflate | None, late: Tensor | None
    ) -> _Batch:
        """Cull, order and plan.

        Args:
            late: (R,) sorted rows that the batch before updates last: it begins with a view that
                waits for few of them.
        """
        limits = [self._most_rows] if self._most_rows is not None else []
        if self._most_share is not None:
            limits.append(max(1, int(self._most_share * self.model.n_rows)))
        most = min(limits, default=None)
        seen = look(self.model.params, views, self._renderer, most_rows=most, inflate=inflate)
        n = len(seen.microbatches)
        order = np.arange(n)
        if self._preset.order == "tsp" and n > 2 and len(seen.ids):
            start = None if late is None else least_shared(seen, late)
            order = np.asarray(gs_order.order(seen.mask, n_views=n, start=start, seed=self._seed))
        return self._planned(views, seen, order)

    def _planned(self, views: Sequence[View], seen: Seen, order: np.ndarray) -> _Batch:
        retain = self._retain
        if isinstance(retain, int):
            # A microbatch and the next are on the device at once, whatever the limit: a view that
            # cannot be cut further is not refused.
            pairs = [seen.counts[a] + seen.counts[b] for a, b in pairwise(order)]
            retain = max(retain, *seen.counts, *pairs)
        plan = gs_order.plan(seen.ids, seen.mask, order, retain=retain, ahead=_AHEAD)
        names = tuple(view.name for view in views)
        return _Batch(names, self.model.edits, seen, order, plan)

    def _prepare_next(
        self, ready: _Batch, upcoming: Sequence[View], settings: StepSettings
    ) -> None:
        """Cull, order and plan the next batch beside this one's rendering."""
        is_sparse = self.model.host.adam.semantics == "sparse"
        if not upcoming or not self._preset.early_cull or is_sparse:
            return
        inflate = largest_move(settings.rates, settings.betas, self.model.host.adam.step_count)
        if inflate is None:
            return
        self._lanes.wait("cull", self._edited)
        with self.trace.host("plan the next"), self._lanes.on("cull"):
            self._next = self._prepare(upcoming, inflate, ready.plan[len(ready.plan) - 1].final)
            self._loads.announce(self._next.plan, ready.seen.ids)
        self._culled = self._lanes.mark("cull")

    # -- a batch -------------------------------------------------------------------------------

    def _run(
        self,
        ready: _Batch,
        batch: Sequence[tuple[View, Tensor]],
        settings: StepSettings,
        observe: Observe,
        step: int,
        upcoming: Sequence[View],
    ) -> Tensor:
        plan, lanes = ready.plan, self._lanes
        drawing = Drawing(self._renderer, settings, observe, len(batch))
        values = [buffer.of(plan.n_slots) for buffer in self._used(self._values)]
        gradients = [buffer.of(plan.n_slots) for buffer in self._used(self._gradients)]
        self._geometry_sum = CompactSum(ready.seen.ids, self.model.params)
        returning = ReturningSum(plan.ids["returning"].values, self.model.host.width)
        loss = torch.zeros((), device=self.model.device)
        drawn: list[torch.cuda.Event | None] = []
        stored: list[torch.cuda.Event | None] = []
        loaded: list[torch.cuda.Event | None] = []
        self._edited = lanes.mark("compute")
        lanes.wait("load", self._edited)

        def load(i: int) -> None:
            # The slots that it fills were last read by microbatch i - 2.
            if i >= 1 + _AHEAD:
                lanes.wait("load", drawn[i - 1 - _AHEAD])
            before = values[(i - 1) % 2] if len(values) == 2 and i else None
            with self.trace.host(f"load {i}"), self.trace.on("load", f"load {i}"):
                self._loads.bring(i, values[i % len(values)], before)
            loaded.append(lanes.mark("load"))

        load(0)
        for i in range(len(plan)):
            lanes.wait("compute", loaded[i])
            if i >= 1 + _AHEAD:
                lanes.wait("compute", stored[i - 1 - _AHEAD])
            with self.trace.host(f"draw {i}"), self.trace.on("compute", f"draw {i}"):
                part = plan[i]
                slots, own = part.slots.long(), gradients[i % len(gradients)]
                self._clear(part, own, gradients[(i - 1) % len(gradients)])
                microbatch = ready.seen.microbatches[part.view]
                leaves = self._leaves(part.visible, slots, values[i % len(values)])
                loss += drawing.draw(microbatch, batch[microbatch.index][1], part.visible, leaves)
                self._add(part.visible, slots, leaves, own)
                returning.complete(part.final, own, part.slots_of("final").long())
                if plan.counts["returning"][i]:
                    returning.put(part.returning, own, part.slots_of("returning").long())
            drawn.append(lanes.mark("compute"))
            if i == 0:
                # Beside the device; with one microbatch, its gradients shall not wait for that.
                if len(plan) > 1:
                    self._prepare_next(ready, upcoming, settings)
                finals = self._finals(plan)
            if i + 1 < len(plan):
                load(i + 1)
            lanes.wait("store", drawn[i])
            with self.trace.host(f"store {i}"), self.trace.on("store", f"store {i}"):
                for slots, ids, is_urgent in finals.of_microbatch(i):
                    self._stores.send(own, slots, ids, step=step, is_urgent=is_urgent)
            stored.append(lanes.mark("store"))
        if len(plan) == 1:
            self._prepare_next(ready, upcoming, settings)
        for event in stored[-2:]:
            lanes.wait("compute", event)
        return loss

    def _finals(self, plan: gs_order.Plan) -> Finals:
        """Read on a stream of their own: the host waits for them, not for what is being drawn."""
        self._lanes.wait("cull", self._edited)
        with self._lanes.on("cull"):
            return Finals.of(plan, self._next.plan if self._next is not None else None)

    def _used(self, buffers: tuple[RowBuffer, RowBuffer]) -> tuple[RowBuffer, ...]:
        """Two that take turns where rows are kept from one microbatch to the next only."""
        return buffers if self._preset.retain == "previous" else buffers[:1]

    def _leaves(self, ids: Tensor, slots: Tensor, values: Tensor) -> dict[str, Tensor]:
        rows = ids.long()
        leaves = {
            name: param.detach().index_select(0, rows).requires_grad_()
            for name, param in self.model.params.items()
        }
        for name, part in columns(values).items():
            leaves[name] = part.index_select(0, slots).requires_grad_()
        return leaves

    def _add(
        self, ids: Tensor, slots: Tensor, leaves: dict[str, Tensor], gradients: Tensor
    ) -> None:
        self._geometry_sum.add(ids, leaves)
        for name, part in columns(gradients).items():
            gradient = leaves[name].grad
            if gradient is not None:
                part.index_add_(0, slots, gradient)

    def _clear(self, part: gs_order.plan_steps.Step, own: Tensor, before: Tensor) -> None:
        """Sums of rows that have just arrived start at zero; those of kept rows are carried."""
        own.index_fill_(0, part.slots_of("load").long(), 0.0)
        sources = part.retain_sources
        if len(sources):
            kept = before.index_select(0, sources.long())
            own.index_copy_(0, part.slots_of("retain").long(), kept)

    # -- updates -------------------------------------------------------------------------------

    def _set_options(self, settings: StepSettings) -> None:
        for group in self.model.geometry.optimizer.param_groups:
            group["lr"] = settings.rates[group["name"]]
            group["betas"] = settings.betas
            group["eps"] = settings.eps
        self.model.host.set_rates(settings.rates, betas=settings.betas, eps=settings.eps)

    def _begin_untouched(self, ready: _Batch, step: int) -> None:
        """Dense: rows that no view sees are updated first, waiting for nothing (CLM 4.2.2)."""
        host = self.model.host
        if host.adam.semantics != "dense" or not self._preset.overlapped:
            return
        untouched = torch.ones(host.n_rows, dtype=torch.bool, device=self.model.device)
        untouched[ready.seen.ids.long()] = False
        host.worker.submit(untouched.cpu(), None, step=step)

    def _update_geometry(self, ready: _Batch, settings: StepSettings) -> None:
        if self._next is not None:
            self._lanes.wait("compute", self._culled)
        adam, sums = self.model.geometry.optimizer, self._geometry_sum
        names = [group["name"] for group in adam.param_groups]
        of = penalties(settings, self.model.n_rows)
        if isinstance(adam, gs_adam.DeviceAdam) and settings.regularise_all:
            gradients = [sums.of[name] for name in names]
            adam.step(sums.ids, gradients, penalties=[of.get(name) for name in names])
            return
        rows = sums.ids.long()
        add_to(sums.of, {name: self.model.params[name].index_select(0, rows) for name in of}, of)
        assert isinstance(adam, gs_adam.DeviceAdam | SelectiveAdam)
        adam.step(sums.ids, [sums.of[name] for name in names])
