# SPDX-License-Identifier: Apache-2.0
"""Which rows of a list are among others, and the list with those first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import gs_order.ragged


@dataclass(frozen=True)
class Parted:
    """Lists of rows, each in two sorted parts.

    Attributes:
        order: (L,) int64 positions within the lists' values, the first parts in front.
        offsets: (B + 1,) where each list begins, on the host.
        n_first: (B,) lengths of the first parts, on the host.
    """

    order: Tensor
    offsets: np.ndarray
    n_first: np.ndarray


def contains(ids: Tensor, rows: Tensor) -> Tensor:
    """(R,) bool: which ``rows`` are among the sorted ``ids``."""
    if not len(ids):
        return torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    place = torch.searchsorted(ids, rows).clamp_(max=len(ids) - 1)
    return ids[place] == rows


def in_two_parts(lists: gs_order.ragged.Ragged, is_first: Tensor) -> Parted:
    """Stable partition of each list. Synchronises.

    Args:
        lists: sorted ids, one list a microbatch.
        is_first: (L,) bool, by value.
    """
    lengths = np.diff(lists.offsets)
    of = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(is_first.device)
    order = torch.sort(2 * of + (~is_first).long(), stable=True).indices
    counts = torch.zeros(len(lengths), dtype=torch.int64, device=is_first.device)
    counts.index_add_(0, of, is_first.long())
    return Parted(order, np.asarray(lists.offsets), counts.cpu().numpy())
