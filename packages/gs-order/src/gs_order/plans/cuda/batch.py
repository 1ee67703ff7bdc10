# SPDX-License-Identifier: Apache-2.0
"""One batch on its way from bits to lists on a CUDA device.

Two kernels: one counts, one writes all lists; between them is the one synchronisation.

A program has a block of rows and goes through the microbatches, forwards for what comes and
backwards for what goes. Counts of all blocks, summed up in the order of the lists, are where each
block writes; the lists' ends go to the host. With a capacity, kernels between the two choose what
waits, unless everything fits; the host learns which it was together with the ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gs_order.plans.checks import check_capacity, check_rising, check_views
from gs_order.plans.cuda.belady import Choice, choose_within
from gs_order.plans.cuda.kernels import BLOCK_ROWS, count_kernel, fill_kernel
from gs_order.plans.lists import KINDS, MOVED, Lists, numbers_of
from gs_order.plans.rules import CHOSEN, LAST_USE, PREVIOUS
from gs_order.plans.slots import Slots, most_live
from gs_order.ragged import offsets_of

Tensor = torch.Tensor


def make_lists(
    ids: Tensor, mask: Tensor, views: np.ndarray[Any, Any], retain: str | int, ahead: int
) -> tuple[Lists, Slots | None]:
    """Lists and slots of a batch; arguments as for `plan`, checked for kind and shape."""
    ids, mask = ids.contiguous(), mask.view(torch.int32).contiguous()
    n = len(views)
    batch = _Batch(ids, mask, views, PREVIOUS if retain == "previous" else LAST_USE)
    choice = None
    if not isinstance(retain, str) and retain < len(ids):
        choice = choose_within(mask, batch.views, batch.counts, retain, ahead)
    batch.sum_up()
    asked = [batch.ends[:, :, -1].flatten(), _falls(ids)[None], _strays(mask, views)[None]]
    if choice is not None:
        asked += [choice.is_needed, choice.together]
    host = torch.cat([part.long() for part in asked]).cpu().numpy()  # the one synchronisation
    check_rising(not host[4 * n])
    check_views(not host[4 * n + 1], n)
    if choice is not None and host[4 * n + 2]:
        check_capacity(int(retain), host[4 * n + 3 :], ahead)
        batch.choice, batch.rule = choice, CHOSEN
    counts = np.diff(host[: 4 * n].reshape(4, n), axis=1, prepend=0)
    lists, intervals = batch.fill(counts)
    if batch.rule == PREVIOUS:
        return lists, None
    n_slots = most_live(lists.offsets, ahead)
    return lists, _slots(intervals, batch.n_intervals(counts), n, n_slots)


class _Batch:
    """One batch on its way from bits to lists.

    Attributes:
        rule: what is counted; ``CHOSEN`` comes with a ``choice``.
        counts: (4, B, blocks) int32: visible, load, store, final rows of each block.
        ends: same shape, int64: where each block's part of a list ends.
    """

    def __init__(self, ids: Tensor, mask: Tensor, views: np.ndarray[Any, Any], rule: int) -> None:
        self.ids, self.mask, self.rule = ids, mask, rule
        self.choice: Choice | None = None
        self.n_views, self.n_rows = len(views), len(ids)
        self.views = torch.as_tensor(views.astype(np.int32)).to(ids.device, non_blocking=True)
        self.n_blocks = max(1, -(-self.n_rows // BLOCK_ROWS))
        shape = (4, self.n_views, self.n_blocks)
        self.counts = torch.empty(shape, dtype=torch.int32, device=ids.device)
        count_kernel[(self.n_blocks,)](
            mask, self.views, self.counts, *self._sizes, RULE=rule, BLOCK=BLOCK_ROWS
        )

    def sum_up(self) -> None:
        """Make ``ends`` of ``counts``."""
        self.ends = self.counts.view(4, -1).cumsum(1).view_as(self.counts)

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.n_rows, self.n_views, self.n_blocks, self.mask.shape[1]

    def n_intervals(self, counts: np.ndarray[Any, Any]) -> int:
        """Numbers that stand for a row's stay: the row's, or those of all loads row by row."""
        return int(counts[1].sum()) if self.rule == CHOSEN else self.n_rows

    def fill(self, counts: np.ndarray[Any, Any]) -> tuple[Lists, dict[str, Tensor]]:
        """All lists, and the interval of each entry of those that have slots."""
        offsets = {kind: offsets_of(number) for kind, number in numbers_of(*counts).items()}
        device, int32 = self.ids.device, torch.int32

        def empty(kind: str, dtype: torch.dtype, wanted: bool = True) -> Tensor:
            size = int(offsets[kind][-1]) if wanted else 0
            return torch.empty(size, dtype=dtype, device=device)

        has_slots = self.rule != PREVIOUS
        ids = {kind: empty(kind, self.ids.dtype) for kind in ("visible", *MOVED)}
        positions = {kind: empty(kind, int32) for kind in KINDS[1:]}
        intervals = {kind: empty(kind, int32, has_slots) for kind in ("visible", *MOVED)}
        if self.rule == LAST_USE:
            for lists in (ids, positions, intervals):
                lists["store"] = lists["final"]
        kept_below = n_loads = base = self.mask  # unused, but for the rule that has a choice
        if self.choice is not None:
            kept_below, n_loads = self.choice.kept_below, self.choice.n_loads
            base = n_loads.cumsum(0, dtype=int32)
        fill_kernel[(self.n_blocks,)](
            self.mask, self.views, kept_below, self.ids, self.counts, self.ends, n_loads, base,
            *ids.values(), *positions.values(), *intervals.values(), *self._sizes,
            RULE=self.rule, BLOCK=BLOCK_ROWS,
        )  # fmt: skip
        return Lists(offsets, ids, positions), intervals


def _slots(intervals: dict[str, Tensor], n_intervals: int, n_views: int, n_slots: int) -> Slots:
    """Slots as `gs_order.plans.cpu.slots.assign_slots` gives them, all loads at once.

    A load that finds no fresh slot takes that of a load of an earlier microbatch, and so on back to
    one that did. Each round doubles how far back is looked.
    """
    load, store = intervals["load"], intervals["store"]
    slot_of = torch.arange(len(load), dtype=torch.int32, device=load.device)
    number_of = torch.zeros(n_intervals, dtype=torch.int32, device=load.device)
    number_of[load.long()] = slot_of
    n_waiting = len(load) - n_slots
    if n_waiting > 0:
        slot_of[n_slots:] = number_of.index_select(0, store[:n_waiting])
        for _ in range((n_views - 1).bit_length()):
            slot_of = slot_of.index_select(0, slot_of)
    of_interval = slot_of.index_select(0, number_of) if len(load) else number_of
    found: dict[int, Tensor] = {id(load): slot_of}
    for entries in intervals.values():
        if id(entries) not in found:
            found[id(entries)] = of_interval.index_select(0, entries)
    return Slots(n_slots, {kind: found[id(entries)] for kind, entries in intervals.items()})


def _falls(ids: Tensor) -> Tensor:
    if len(ids) < 2:
        return torch.zeros((), dtype=torch.bool, device=ids.device)
    return (ids[1:] <= ids[:-1]).any()


def _strays(mask: Tensor, views: np.ndarray[Any, Any]) -> Tensor:
    """Whether a bit at or beyond the number of views is set. There is a word for each 32 views."""
    last = len(views) % 32
    if last == 0:
        return torch.zeros((), dtype=torch.bool, device=mask.device)
    return ((mask[:, -1] >> last) != 0).any()
