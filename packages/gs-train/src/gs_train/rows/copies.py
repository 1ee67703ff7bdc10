# SPDX-License-Identifier: Apache-2.0
"""Rows that a view sees, copied out of all, and their gradients, added back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gs_train.machine.has_triton import has_triton
from gs_train.rows.attributes import APPEARANCE
from gs_train.rows.initial_sums import InitialSums


def take_rows(
    values: Mapping[str, Tensor], ids: Tensor, slots: Tensor | None = None
) -> dict[str, Tensor]:
    """Copies of rows, by name.

    On CUDA, where Triton is installed, all six attributes are one launch: index_select copies
    rows of 16 and of 192 bytes at a tenth of the memory's rate.

    Args:
        values: some attributes, (N, ...) each.
        ids: (R,) int32 or int64.
        slots: (R,) where the same rows lie in ``sh0`` and ``shN``, (C, ...); None: as ``ids`` says.

    Returns:
        (R, ...) contiguous.
    """
    slots = ids if slots is None else slots
    if _is_fused(values) and len(ids):
        from gs_train.rows.copies_triton import take

        return take(values, ids, slots)
    return {
        name: part.index_select(0, slots if name in APPEARANCE else ids)
        for name, part in values.items()
    }


def add_rows(
    totals: Mapping[str, Tensor],
    parts: Mapping[str, Tensor | None],
    ids: Tensor | None,
    slots: Tensor | None,
    begun: InitialSums | None = None,
) -> None:
    """Add gradients to rows, each of them once, by name.

    Args:
        totals: some attributes' sums, (N, ...) each.
        parts: (R, ...) of the same names; None counts as zero.
        ids: (R,) int32 or int64 rows of the sums; None where R is N.
        slots: the same for ``sh0`` and ``shN``.
        begun: what these two have come to before; None: what is in their sums.
    """
    complete = {name: part for name, part in parts.items() if part is not None}
    if len(complete) == len(totals) and _is_fused(totals, begun) and len(complete["means"]):
        from gs_train.rows.copies_triton import add

        add(totals, complete, ids, slots, begun)
        return
    for name, total in totals.items():
        at, part = slots if name in APPEARANCE else ids, complete.get(name)
        if begun is not None and name in APPEARANCE:
            rows = begun.rows(name)
            everything = torch.arange(len(rows), device=rows.device)
            total.index_copy_(0, everything if at is None else at.long(), rows)
        if part is None:
            continue
        if at is None:
            total.add_(part)
        else:  # rows are distinct: on a device no two additions meet
            total.index_add_(0, at, part)


def _is_fused(values: Mapping[str, Tensor], begun: InitialSums | None = None) -> bool:
    if not next(iter(values.values())).is_cuda or not has_triton():
        return False
    from gs_train.rows.copies_triton import is_begun, is_taken

    return is_taken(values) and (begun is None or is_begun(values, begun))
