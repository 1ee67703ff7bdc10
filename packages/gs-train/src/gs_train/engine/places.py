# SPDX-License-Identifier: Apache-2.0
"""Which of a batch's rows a microbatch draws."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from gs_train.engine.microbatches import Seen
from gs_train.machine.has_triton import has_triton

TOGETHER = 8
"""Microbatches whose rows are found by one launch; `places_kernels.find_kernel` has so many."""


class Drawn(NamedTuple):
    """The rows of one microbatch.

    Attributes:
        place: (R,) int32 or int64, sorted: where they are among the batch's; None: it draws all.
        ids: (R,) int32 rows.
        slots: (R,) where they lie.
    """

    place: Tensor | None
    ids: Tensor
    slots: Tensor


class Places:
    """Finds the rows of each microbatch without waiting for the device: their number is known.

    On CUDA, where Triton is installed, all are counted at once, and the rows of `TOGETHER`
    microbatches are found by one launch, when the first of these is asked for.

    Args:
        seen: what the batch sees.
        slots: (U,) integers that go with ``seen.ids``.
        order: in which microbatches are asked for; None: their own.
    """

    def __init__(self, seen: Seen, slots: Tensor, order: Iterable[int] | None = None) -> None:
        self._seen = seen
        self._slots = slots
        self._order = range(len(seen.counts)) if order is None else [int(i) for i in order]
        self._found: dict[int, Drawn] = {}
        self._ends: Tensor | None = None
        if len(seen.counts) > 1 and len(seen.ids) and seen.ids.is_cuda and has_triton():
            from gs_train.engine.places_triton import count

            self._ends = count(seen.mask, len(seen.counts))

    def of(self, i: int) -> Drawn:
        """The rows of microbatch i."""
        seen, count = self._seen, self._seen.counts[i]
        if count == seen.ids.shape[0]:
            return Drawn(None, seen.ids, self._slots)
        if self._ends is not None:
            if i not in self._found:
                self._found = self._find_with(i, self._ends)
            return self._found[i]
        everything = torch.arange(len(seen.ids), device=seen.ids.device)
        word, bit = divmod(i, 32)
        sees = (seen.mask[:, word] >> bit) & 1
        # Rows that it does not see go to a place behind the last.
        target = (torch.cumsum(sees, 0) - 1).where(sees != 0, count)
        place = everything.new_empty(count + 1).scatter_(0, target, everything)[:-1]
        return Drawn(place, seen.ids.index_select(0, place), self._slots.index_select(0, place))

    def _find_with(self, i: int, ends: Tensor) -> dict[int, Drawn]:
        """The rows of microbatch i and of those that come next."""
        from gs_train.engine.places_triton import find

        seen, first = self._seen, self._order.index(i) // TOGETHER * TOGETHER
        following = self._order[first : first + TOGETHER]
        chosen = [k for k in following if seen.counts[k] < seen.ids.shape[0]]
        counts = [seen.counts[k] for k in chosen]
        found = find(seen.mask, ends, chosen, sum(counts), seen.ids, self._slots)
        place, ids = (lists.split(counts) for lists in found[:2])
        slots = ids if found[2] is found[1] else found[2].split(counts)
        return {k: Drawn(*parts) for k, *parts in zip(chosen, place, ids, slots, strict=True)}
