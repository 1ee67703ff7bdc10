# SPDX-License-Identifier: Apache-2.0
"""Optimizer steps of rows of appearance in slots of the device, and how many of them slept."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

import gs_adam


class SlotSteps:
    """Steps of a batch's rows in three tables of slots: values, first and second moments.

    Args:
        adam: decides how rows are updated.
    """

    def __init__(self, adam: gs_adam.DeviceRows) -> None:
        self._adam = adam

    def wake(
        self,
        tables: Sequence[Tensor],
        last_step: Tensor | None,
        slots: Tensor,
        ids: Tensor,
        step: int,
        marks: Tensor | None,
    ) -> int | Tensor:
        """Make rows what an open step begins with.

        Args:
            tables: (C, W) each.
            last_step: (N,) int32; None where no row ever sleeps.
            slots, ids: (U,) of the rows.
            step: open.
            marks: (U,) bool: which of the rows; None: all.

        Returns:
            How many of them slept, () int64 on the device; 0 where none ever does.
        """
        slept: int | Tensor = 0
        if last_step is not None:
            sleeps = last_step.index_select(0, ids) < step - 1
            slept = (sleeps if marks is None else sleeps & marks).sum()
        values, exp_avg, exp_avg_sq = tables
        self._adam.wake(values, exp_avg, exp_avg_sq, slots, last_step, ids, step=step, marks=marks)
        return slept

    def update(
        self,
        tables: Sequence[Tensor],
        last_step: Tensor | None,
        slots: Tensor,
        ids: Tensor,
        gradients: Tensor,
        step: int,
        marks: Tensor | None,
    ) -> None:
        """Take a step with the gradients, (U, W)."""
        values, exp_avg, exp_avg_sq = tables
        self._adam.update(
            *(values, exp_avg, exp_avg_sq, slots, last_step, ids, gradients),
            step=step,
            marks=marks,
        )
