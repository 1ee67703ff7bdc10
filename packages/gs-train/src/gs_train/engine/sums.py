# SPDX-License-Identifier: Apache-2.0
"""Gradients summed over the microbatches of a batch, compact over the rows that it touches."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class CompactSum:
    """Gradients of some attributes over sorted row ids.

    Attributes:
        ids: (U,) int32, sorted.
        of: by name (U, ...), zero at first.
    """

    def __init__(self, ids: Tensor, like: Mapping[str, Tensor]) -> None:
        self.ids = ids
        self.of = {name: p.new_zeros((len(ids), *p.shape[1:])) for name, p in like.items()}


class ReturningSum:
    """Partial gradients of rows that leave the device and come back within a batch.

    Compact over these rows, so that the ring carries each row once, complete.
    """

    def __init__(self, returning: Tensor, width: int) -> None:
        self._ids = returning.unique()
        self._sum = torch.zeros((len(self._ids), width), device=returning.device)

    def put(self, ids: Tensor, gradients: Tensor, slots: Tensor) -> None:
        """Note the gradients of rows that leave though they return."""
        place = torch.searchsorted(self._ids, ids)
        self._sum.index_add_(0, place, gradients.index_select(0, slots))

    def complete(self, ids: Tensor, gradients: Tensor, slots: Tensor) -> None:
        """Add what was noted to rows that are now final; others stay as they are."""
        if not len(self._ids) or not len(ids):
            return
        place = torch.searchsorted(self._ids, ids).clamp_(max=len(self._ids) - 1)
        there = (self._ids[place] == ids).unsqueeze(1)
        gradients.index_add_(0, slots, self._sum.index_select(0, place).where(there, 0.0))
