# SPDX-License-Identifier: Apache-2.0
"""Gradients summed over the microbatches of a batch, compact over the rows that it touches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

import gs_order
from gs_train.rows.initial_sums import FIRST_NOTED, NOTHING


class CompactSum:
    """Gradients of some attributes over sorted row ids.

    Attributes:
        ids: (U,) int32, sorted.
        of: by name (U, ...), zero at first.
    """

    def __init__(self, ids: Tensor, like: Mapping[str, Tensor]) -> None:
        self.ids = ids
        self.of = {name: p.new_zeros((len(ids), *p.shape[1:])) for name, p in like.items()}


@dataclass(frozen=True, eq=False)
class Returning:
    """Rows of a batch that leave the device and come back within it.

    Attributes:
        ids: (Q,) int32, sorted.
        of_loads: (L,) int32 of all load lists of the plan, one after the other: where the sum of
            such a row begins, as `gs_train.rows.copies.InitialSums` says it.
    """

    ids: Tensor
    of_loads: Tensor

    @classmethod
    def of(cls, plan: gs_order.Plan) -> Returning:
        """Those of a plan. Synchronises, where there are any, with the current stream."""
        loads = plan.ids["load"].values
        nothing = torch.full(loads.shape, NOTHING, dtype=torch.int32, device=loads.device)
        returning = plan.ids["returning"].values
        if not len(returning):
            return cls(returning, nothing)
        ids = returning.unique()
        place = torch.searchsorted(ids, loads, out_int32=True).clamp_(max=len(ids) - 1)
        is_returning = ids.index_select(0, place) == loads
        return cls(ids, torch.where(is_returning, FIRST_NOTED - place, nothing))


class ReturningSum:
    """What the gradients of such rows have come to while they are away.

    Compact over these rows, so that the ring carries each row once, complete.

    Attributes:
        rows: (Q, W), zero at first.
    """

    def __init__(self, returning: Returning, width: int) -> None:
        self._ids = returning.ids
        self.rows = torch.zeros((len(self._ids), width), device=self._ids.device)

    def put(self, ids: Tensor, gradients: Tensor, slots: Tensor) -> None:
        """Note the sums of rows that leave though they return; each began with what was noted."""
        place = torch.searchsorted(self._ids, ids)
        self.rows.index_copy_(0, place, gradients.index_select(0, slots))
