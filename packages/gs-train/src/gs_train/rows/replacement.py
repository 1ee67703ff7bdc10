# SPDX-License-Identifier: Apache-2.0
"""Where rows go when some are removed and others added: only these change their places."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

ROOM = 16
"""Memory that has to grow gets room for one in so many rows more."""


@dataclass(frozen=True, eq=False)
class Replacement:
    """The places of rows before and after, such that no place in between is empty.

    ::

        rows of before   0 1 x 3 x 5 6 7        x: removed
        more are added   0 1 A 3 C 5 6 7 B D    A, C spread evenly over A, B, C, D
        fewer are added  0 1 A 3 7 5 6          the last rows come where nobody else does

    Attributes:
        n_before, n_after: numbers of rows.
        placed: (A,) int64: where each new row goes. In their order the new rows are spread evenly
            over the places that become free; those for which there is none go to the end.
        moved_from, moved_to: (M,) int64: rows at and above ``n_after`` that stay, and free places
            below it where they go; both sorted.
        vacant: (V,) int64: places of removed rows that no new row takes.
    """

    n_before: int
    n_after: int
    placed: Tensor
    moved_from: Tensor
    moved_to: Tensor
    vacant: Tensor

    @classmethod
    def of(cls, n_rows: int, removed: Tensor, n_new: int) -> Replacement:
        """The replacement of rows ``removed`` (sorted, unique) by ``n_new`` others.

        Synchronises where fewer are added than removed. Cost: some passes over the rows that
        change.
        """
        removed, n_after = removed.long(), n_rows - len(removed) + n_new
        nothing = removed[:0]
        if n_new >= len(removed):
            filling = _spread(len(removed), n_new, removed.device)
            comes_last = torch.ones(n_new, dtype=torch.bool, device=removed.device)
            comes_last.index_fill_(0, filling, False)
            placed = comes_last.cumsum(0).add_(n_rows - 1).index_copy_(0, filling, removed)
            return cls(n_rows, n_after, placed, nothing, nothing, nothing)
        n_free = int(torch.searchsorted(removed, n_after))
        free, beyond = removed[:n_free], removed[n_free:]
        filled = _spread(n_new, n_free, removed.device)
        moved_to = free.index_select(0, _left(n_free, filled))
        moved_from = _left(n_rows - n_after, beyond - n_after).add_(n_after)
        vacant = torch.cat((moved_to, beyond))
        return cls(n_rows, n_after, free.index_select(0, filled), moved_from, moved_to, vacant)

    def on(self, device: torch.device | str) -> Replacement:
        """The same with its lists on another device."""
        tensors = {
            field.name: getattr(self, field.name).to(device)
            for field in fields(self)
            if isinstance(getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)

    def edited(self, rows: Tensor, new: Tensor | int) -> Tensor:
        """Rows of a table after the replacement, in the same memory.

        Args:
            rows: (n_before or more, ...) contiguous, where the lists are.
            new: (A, ...) values of the new rows, on any device, some of ``rows`` themselves among
                them; or one value for all of them.

        Returns:
            (n_after, ...) view.
        """
        if isinstance(new, Tensor):
            new = apart(new, rows)
        rows = grown(rows, max(self.n_before, self.n_after), None)
        if len(self.moved_to):
            rows.index_copy_(0, self.moved_to, rows.index_select(0, self.moved_from))
        if isinstance(new, Tensor):
            rows.index_copy_(0, self.placed, new)
        else:
            rows.index_fill_(0, self.placed, new)
        return rows[: self.n_after]


def apart(new: Tensor, rows: Tensor) -> Tensor:
    """The same values on the device of ``rows``, and in no memory of theirs, which is edited."""
    new = new.detach().to(rows.device)
    is_shared = new.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
    return new.clone() if is_shared else new


def grown(rows: Tensor, n_rows: int, most: int | None) -> Tensor:
    """The same rows and undefined ones behind them, ``n_rows`` in all.

    They stay in their memory where it has room behind them, which must be nobody else's. Else they
    are copied to memory that has room ahead: a few rows more at a time seldom copy all.

    Args:
        rows: (N, ...) contiguous.
        most: rows that there is no room ahead beyond; None: not known.
    """
    if n_rows <= len(rows):
        return rows
    shape, size = rows.shape[1:], rows.shape[1:].numel() * rows.element_size()
    end = rows.storage_offset() * rows.element_size() + n_rows * size
    if end <= rows.untyped_storage().nbytes():
        return rows.as_strided((n_rows, *shape), rows.stride())
    room = n_rows + n_rows // ROOM
    room = room if most is None else max(n_rows, min(room, most))
    larger = rows.new_empty((room, *shape))
    larger[: len(rows)] = rows
    return larger[:n_rows]


def _spread(n: int, places: int, device: torch.device) -> Tensor:
    """(n,) int64: n of so many places, as even as can be. n is at most ``places``."""
    return torch.arange(n, device=device) * places // max(n, 1)


def _left(n: int, taken: Tensor) -> Tensor:
    """Sorted numbers below n without those that are taken. Synchronises."""
    is_left = torch.ones(n, dtype=torch.bool, device=taken.device)
    return is_left.index_fill_(0, taken, False).nonzero().flatten()
