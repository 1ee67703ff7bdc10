# SPDX-License-Identifier: Apache-2.0
"""Which rows of a list are among others, and the list with those first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gs_order import Plan, Ragged


def contains(ids: Tensor, rows: Tensor) -> Tensor:
    """(R,) bool: which ``rows`` are among the sorted ``ids``."""
    if not len(ids):
        return torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    place = torch.searchsorted(ids, rows).clamp_(max=len(ids) - 1)
    return ids[place] == rows


@dataclass(frozen=True)
class Parted:
    """Lists of rows, each in two sorted parts.

    Attributes:
        ids: (L,) sorted within each part, the first parts in front; on the device.
        slots: (L,) of the same rows; on the device.
        on_host: the ids on the host.
        offsets: (B + 1,) where each list begins; on the host.
        n_first: (B,) lengths of the first parts; on the host.
    """

    ids: Tensor
    slots: Tensor
    on_host: np.ndarray
    offsets: np.ndarray
    n_first: np.ndarray

    @classmethod
    def of(cls, lists: Ragged, slots: Tensor, is_first: Tensor) -> Parted:
        """Stable partition of each list. Synchronises once.

        Args:
            lists: sorted ids, one list a microbatch.
            slots: (L,) of these rows.
            is_first: (L,) bool, by value.
        """
        offsets = np.asarray(lists.offsets)
        ends = torch.from_numpy(offsets[1:].copy()).to(is_first.device, non_blocking=True)
        place = torch.arange(len(is_first), device=is_first.device)
        of = torch.bucketize(place, ends, right=True)
        order = torch.sort(2 * of + (~is_first).long(), stable=True).indices
        counts = torch.zeros(len(ends), dtype=torch.int64, device=is_first.device)
        counts.index_add_(0, of, is_first.long())
        # Both before the wait: other streams read them without another one.
        ids, slots = lists.values[order], slots[order]
        on_host, n_first = _to_host(ids, counts)
        return cls(ids, slots, on_host.numpy(), offsets, n_first.numpy())

    def bounds(self, i: int) -> tuple[int, int, int]:
        """Where list i begins, where its second part begins, and where it ends."""
        first, last = int(self.offsets[i]), int(self.offsets[i + 1])
        return first, first + int(self.n_first[i]), last


def slots_of(plan: Plan, kind: str) -> Tensor:
    """(L,) slots of all rows of a kind, microbatch after microbatch."""
    source = plan.slots if plan.slots is not None else plan.positions
    return source[kind].values


def _to_host(*tensors: Tensor) -> list[Tensor]:
    """Copies in host memory, behind one wait."""
    if not tensors[0].is_cuda:
        return list(tensors)
    copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    for copy, tensor in zip(copies, tensors):
        copy.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return copies
