# SPDX-License-Identifier: Apache-2.0
"""Rows that visit slots in the memory of a CUDA device."""

from __future__ import annotations

import torch

from gs_adam import _core
from gs_adam._sleep_tables import SleepTables
from gs_adam._streams import current_handle
from gs_adam._visit import Visit


class RowsOnCuda:
    """Updates them by one kernel.

    Args:
        device: with its index.
        widths, groups: columns and group of each parameter.
    """

    def __init__(self, device: torch.device, widths: list[int], groups: list[int]) -> None:
        self._device = device
        self._widths = widths
        self._groups = groups
        self._tables = SleepTables(device)

    def wake(self, plan: _core.StepPlan, visit: Visit) -> None:
        """Bring rows to the step before the plan's."""
        if plan.recent_bytes:
            self._launch(plan, visit, None)
        else:  # before the first step, and where no rates are known, no row sleeps
            visit.check(sum(self._widths), self._device)
            visit.count_rows()

    def update(self, plan: _core.StepPlan, visit: Visit, grads: torch.Tensor) -> None:
        """Take the plan's step."""
        self._launch(plan, visit, grads)

    def lookahead(self, plan: _core.StepPlan, visit: Visit, out: list[torch.Tensor]) -> None:
        """Write the values of rows at the step before the plan's elsewhere."""
        if not plan.recent_bytes:  # as in `wake`: a copy
            visit = visit._replace(last_step=None, ids=None)
        param, exp_avg, exp_avg_sq, slots, last_step, ids, _, _ = visit
        index = self._device.index
        handle = current_handle(index)
        try:
            recent, past = (None, None) if last_step is None else self._tables.of(plan, handle)
            _core.device_lookahead(
                plan, self._widths, self._groups, param, exp_avg, exp_avg_sq, slots, last_step,
                ids, recent, past, out, index, handle,
            )  # fmt: skip
        except Exception:
            visit.check(sum(self._widths), self._device)  # which says it in torch's words
            raise

    def _launch(self, plan: _core.StepPlan, visit: Visit, grads: torch.Tensor | None) -> None:
        param, exp_avg, exp_avg_sq, slots, last_step, ids, marks, counts = visit
        index = self._device.index
        handle = current_handle(index)
        try:
            recent, past = (None, None) if last_step is None else self._tables.of(plan, handle)
            _core.device_slots(
                plan, self._widths, self._groups, param, exp_avg, exp_avg_sq, slots, last_step,
                ids, marks, grads, counts, recent, past, index, handle,
            )  # fmt: skip
        except Exception:  # nothing has been enqueued, unless a launch failed
            visit.check(sum(self._widths), self._device)  # which says it in torch's words
            if grads is not None:
                visit.check_step(grads, plan.step)
            raise
