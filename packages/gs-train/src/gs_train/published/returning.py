# SPDX-License-Identifier: Apache-2.0
"""Rows that leave the device and come back within a batch, and their sums of gradients."""

from __future__ import annotations

import torch
from torch import Tensor

import gs_order
from gs_train.rows.initial_sums import FIRST_NOTED, NOTHING


class Returning:
    """Rows of a batch that leave the device and come back within it.

    What their gradients have come to while they are away is compact over these rows, so that the
    ring carries each row once, complete.

    Args:
        plan: of the batch.
        width: W, of a row of appearance.

    Attributes:
        ids: (Q,) int32, sorted.
        of_loads: (L,) int32 of all load lists of the plan, one after the other: where the sum of
            such a row begins, as `gs_train.rows.copies.InitialSums` says it.
        sums: (Q, W), zero at first.
    """

    def __init__(self, plan: gs_order.Plan, width: int) -> None:
        """Synchronises, where there are any, with the current stream."""
        self.ids, loads = plan.ids["returning"].values, plan.ids["load"].values
        self.of_loads = torch.full(loads.shape, NOTHING, dtype=torch.int32, device=loads.device)
        if len(self.ids):
            self.ids = self.ids.unique()
            place = torch.searchsorted(self.ids, loads, out_int32=True)
            place.clamp_(max=len(self.ids) - 1)
            is_returning = self.ids.index_select(0, place) == loads
            self.of_loads = torch.where(is_returning, FIRST_NOTED - place, self.of_loads)
        self.sums = torch.zeros((len(self.ids), width), device=loads.device)

    def put(self, ids: Tensor, gradients: Tensor, slots: Tensor) -> None:
        """Note the sums of rows that leave though they return; each began with what was noted."""
        place = torch.searchsorted(self.ids, ids)
        self.sums.index_copy_(0, place, gradients.index_select(0, slots))

    def first_sums(self, part: gs_order.Step) -> Tensor:
        """(R,) `InitialSums.at` of visible rows: rows that have just arrived begin with nothing, or
        with the sum that was noted when they left; kept rows begin with the sum that they had."""
        first, last = part.plan.ids["load"].offsets[part.index : part.index + 2]
        arrived = self.of_loads[first:last]
        if len(arrived) == len(part.visible):
            return arrived
        if part.plan.slots is None:
            at = torch.empty_like(part.slots)
            at.index_copy_(0, part.positions("retain").long(), part.retain_sources)
        else:
            at = part.slots.clone()
        return at.index_copy_(0, part.positions("load").long(), arrived)
