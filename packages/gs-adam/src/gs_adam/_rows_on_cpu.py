# SPDX-License-Identifier: Apache-2.0
"""Rows that visit slots in host memory: updated by the host kernel itself."""

from __future__ import annotations

import threading
from typing import Any

import torch

from gs_adam import _core
from gs_adam._tensors import as_native, place
from gs_adam._visit import Visit


class RowsOnCpu:
    """Binds the columns of three tables as an optimizer's tensors.

    Args:
        schedule: counts its steps.
        threads: 0 means one per processor.
        widths, groups: columns and group of each parameter.
    """

    def __init__(
        self, schedule: _core.Schedule, threads: int, widths: list[int], groups: list[int]
    ) -> None:
        self._schedule = schedule
        self._threads = threads
        self._widths = widths
        self._groups = groups
        self._places: list[Any] = []
        self._rows: _core.Rows | None = None
        # (C,) int32: of the slots of a call, the step that each row was last updated in.
        self._last_step = torch.zeros(0, dtype=torch.int32, device="cpu")
        self._lock = threading.Lock()  # one call at a time has these

    def wake(self, plan: _core.StepPlan, visit: Visit) -> None:
        """Bring rows to the step before the plan's."""
        visit = visit.marked()
        order = _sorting(visit.slots)
        with self._lock:
            rows = self._bound(visit)
            n_slept = self._enter(visit, plan.step - 1)
            try:
                rows.wake(plan, visit.slots[order].numpy())
            finally:
                self._leave(visit)
        visit.count_rows(n_slept)

    def update(self, plan: _core.StepPlan, visit: Visit, grads: torch.Tensor) -> None:
        """Take the plan's step."""
        grads = grads.detach()
        if visit.marks is not None:
            grads = grads[visit.marks]
        visit = visit.marked()
        order = _sorting(visit.slots)
        gradients = self._columns(grads[order])
        with self._lock:
            rows = self._bound(visit)
            self._enter(visit, plan.step - 1)
            try:
                rows.update(plan, visit.slots[order].numpy(), gradients, 0)
            finally:
                self._leave(visit)

    def lookahead(self, plan: _core.StepPlan, visit: Visit, out: list[torch.Tensor]) -> None:
        """Write the values of rows as of the plan's step elsewhere."""
        order = _sorting(visit.slots)
        parts = out
        if not isinstance(order, slice):
            parts = [torch.empty_like(part) for part in out]
        with self._lock:
            rows = self._bound(visit)
            self._enter(visit, plan.step)
            native: list[Any] = [as_native(part) for part in parts]
            rows.lookahead(plan, False, visit.slots[order].numpy(), None, None, native, 0)
        if not isinstance(order, slice):
            for whole, part in zip(out, parts, strict=True):
                whole.detach().numpy()[order.numpy()] = part.numpy()

    def _bound(self, visit: Visit) -> _core.Rows:
        places = [place(table) for table in visit[:3]]
        sleeps = visit.last_step is not None
        if self._rows is None or places != self._places:
            n_slots = visit.param.shape[0]
            if self._last_step.shape[0] != n_slots:
                self._last_step = torch.zeros(n_slots, dtype=torch.int32, device="cpu")
            param, exp_avg, exp_avg_sq = (self._columns(table) for table in visit[:3])
            last_step = self._last_step if sleeps else None
            self._rows = _core.Rows(
                param, exp_avg, exp_avg_sq, self._groups, last_step, self._schedule, False,
                self._threads,
            )  # fmt: skip
            self._places = places
        return self._rows

    def _columns(self, table: torch.Tensor) -> list[Any]:
        return [as_native(columns) for columns in table.detach().split(self._widths, dim=1)]

    def _enter(self, visit: Visit, step: int) -> int:
        """Copy the ``last_step`` of rows to their slots; returns how many sleep before ``step``."""
        if visit.last_step is None or visit.ids is None:
            return 0
        last_step = visit.last_step[visit.ids.long()]
        self._last_step[visit.slots.long()] = last_step
        return 0 if visit.counts is None else int((last_step < step).sum())

    def _leave(self, visit: Visit) -> None:
        if visit.last_step is not None and visit.ids is not None:
            # By numpy: torch refuses to write to a tensor of inference mode outside of that mode,
            # and by now the rows have been written.
            last_step = self._last_step[visit.slots.long()].numpy()
            visit.last_step.detach().numpy()[visit.ids.numpy()] = last_step


def _sorting(slots: torch.Tensor) -> Any:
    """What indexes slots in order; those that are so already are not copied."""
    return slice(None) if bool((slots[1:] > slots[:-1]).all()) else slots.argsort()
