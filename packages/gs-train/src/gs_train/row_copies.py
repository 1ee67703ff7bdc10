# SPDX-License-Identifier: Apache-2.0
"""Rows that a view sees, copied out of all, and their gradients, added back."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gs_train.has_triton import has_triton

_APPEARANCE = ("sh0", "shN")


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
        from gs_train.row_triton import take

        return take(values, ids, slots)
    return {
        name: part.index_select(0, slots if name in _APPEARANCE else ids)
        for name, part in values.items()
    }


def add_rows(
    totals: Mapping[str, Tensor],
    parts: Mapping[str, Tensor | None],
    ids: Tensor | None,
    slots: Tensor | None,
) -> None:
    """Add gradients to rows, each of them once, by name.

    Args:
        totals: some attributes' sums, (N, ...) each.
        parts: (R, ...) of the same names; None counts as zero.
        ids: (R,) int32 or int64 rows of the sums; None where R is N.
        slots: the same for ``sh0`` and ``shN``.
    """
    complete = {name: part for name, part in parts.items() if part is not None}
    if len(complete) == len(totals) and _is_fused(totals) and len(complete["means"]):
        from gs_train.row_triton import add

        add(totals, complete, ids, slots)
        return
    for name, part in complete.items():
        at = slots if name in _APPEARANCE else ids
        if at is None:
            totals[name].add_(part)
        else:
            totals[name].index_add_(0, at, part)


def _is_fused(values: Mapping[str, Tensor]) -> bool:
    if not next(iter(values.values())).is_cuda or not has_triton():
        return False
    from gs_train.row_triton import is_taken

    return is_taken(values)
