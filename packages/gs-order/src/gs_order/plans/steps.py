# SPDX-License-Identifier: Apache-2.0
"""A planned batch as an engine reads it, microbatch by microbatch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gs_order.arrays import Array, is_torch
from gs_order.checks import integer
from gs_order.plans.host_plan import HostPlan, host_plan
from gs_order.plans.lists import KINDS
from gs_order.ragged import Ragged


@dataclass(frozen=True)
class Plan:
    """A batch, microbatch by microbatch in running order: ``plan[i]``, ``len(plan)``.

    With S_i the visible set of microbatch i, each part a sorted list:

        load        rows of S_i that come from the host
        retain      rows of S_i that are on the device already: S_i without load
        store       rows of S_i that send their gradient away afterwards
        carry       rows of S_i that stay, parameters and gradient sum: S_i without store
        final       rows of S_i that no later microbatch sees: their gradient is complete
        returning   rows stored although a later microbatch sees the row: store without final

    Device buffers:
        ``retain="previous"``: two buffers take turns. Row k of S_i lies in slot k of buffer i % 2;
        retained rows are copied from the other buffer, from the slots ``retain_sources``.
        Otherwise: one buffer. A row keeps its slot from load to store, rows that wait included.
        With ``ahead`` = a, loads of microbatch i + a use no slot of a row that is on the device
        while i runs, so that these loads may run beside i.

    All lists of a batch lie in one array a kind, made at once. Lists of a `Step` are slices and
    cost no launch on a device, except where a docstring says otherwise.

    Attributes:
        order: (B,) int64 numpy, the view that each microbatch renders.
        retain, ahead: as given to `plan`.
        ids: of ``visible``, ``load``, ``store``, ``returning``, ``final``.
        positions: ``load``, ``retain``, ``store``, ``carry``, ``returning``, ``final``: int32
            positions within the visible list.
        slots: int32 slots of the same kinds as ``ids``; None where slot and position are the same.
        n_slots: rows that one device buffer must hold: the most rows on the device at once.

    Where rows stay to their last use, ``store`` and ``final`` are the same arrays.
    """

    order: np.ndarray[Any, Any]
    retain: str | int
    ahead: int
    ids: dict[str, Ragged]
    positions: dict[str, Ragged]
    slots: dict[str, Ragged] | None
    n_slots: int

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, i: int) -> Step:
        i = integer("microbatch", i)
        if not 0 <= i < len(self):
            raise IndexError(f"microbatch must be in [0, {len(self)}), got {i}")
        return Step(self, i)

    def __repr__(self) -> str:
        return (
            f"Plan({len(self)} microbatches, retain={self.retain!r}, "
            f"{self.counts['load'].sum()} rows loaded, {self.counts['store'].sum()} stored, "
            f"n_slots={self.n_slots})"
        )

    @property
    def visible(self) -> Ragged:
        """Ids of S_i."""
        return self.ids["visible"]

    @cached_property
    def counts(self) -> dict[str, np.ndarray[Any, Any]]:
        """(B,) int64 lengths of ``visible`` and of each list, on the host."""
        lists = {"visible": self.visible, **self.positions}
        return {kind: lists[kind].counts for kind in KINDS}

    def to_host(self) -> HostPlan:
        """The ids that host threads need, on their way to host memory.

        Returns:
            ids of ``load``, ``store``, ``final`` and ``returning``.

        Asynchrony: from CUDA, copies into page-locked memory are enqueued on the current stream
            and this returns; the handle waits when asked. From the CPU nothing is copied.
        """
        return host_plan(self.ids)

    @cached_property
    def _first_slots(self) -> Array:
        values = self.visible.values
        if is_torch(values):
            import torch

            return torch.arange(self.n_slots, dtype=torch.int32, device=values.device)
        return np.arange(self.n_slots, dtype=np.int32)


@dataclass(frozen=True)
class Step:
    """Microbatch i of a plan; ids and positions are arrays of the kind the plan was made of."""

    plan: Plan
    index: int

    @property
    def view(self) -> int:
        """The view that the microbatch renders."""
        return int(self.plan.order[self.index])

    @property
    def visible(self) -> Array:
        """(n,) sorted ids of S_i."""
        return self.plan.visible[self.index]

    @property
    def slots(self) -> Array:
        """(n,) int32 slot of each visible row in the device buffer."""
        if self.plan.slots is not None:
            return self.plan.slots["visible"][self.index]
        return self.plan._first_slots[: int(self.plan.counts["visible"][self.index])]

    def positions(self, kind: str) -> Array:
        """int32 positions of a list (``"load"``, ``"store"``, ...) within ``visible``.

        Raises:
            ValueError: there is no such list.
        """
        known = self.plan.positions
        if not isinstance(kind, str) or kind not in known:
            raise ValueError(f"kind must be one of {', '.join(known)}, got {kind!r}")
        return known[kind][self.index]

    def slots_of(self, kind: str) -> Array:
        """int32 slots of the rows of a list.

        Raises:
            ValueError: there is no such list.

        Cost: a look-up for ``"retain"`` and ``"carry"`` where rows keep their slots.
        """
        positions = self.positions(kind)
        if self.plan.slots is None:
            return positions
        if kind in self.plan.slots:
            return self.plan.slots[kind][self.index]
        return self.slots[positions]

    @property
    def retain_sources(self) -> Array:
        """int32 slots in the other buffer of the rows to copy, in the order of ``retain``.

        Empty where rows keep their slots.
        """
        if self.plan.slots is None and self.index > 0:
            return self.plan.positions["carry"][self.index - 1]
        return self.plan.positions["carry"].values[:0]

    @property
    def load(self) -> Array:
        """Sorted ids that come from the host."""
        return self.plan.ids["load"][self.index]

    @property
    def retain(self) -> Array:
        """Sorted ids that are on the device already. Cost: a look-up."""
        return self.visible[self.positions("retain")]

    @property
    def store(self) -> Array:
        """Sorted ids of rows that send their gradient away afterwards."""
        return self.plan.ids["store"][self.index]

    @property
    def carry(self) -> Array:
        """Sorted ids that stay on the device. Cost: a look-up."""
        return self.visible[self.positions("carry")]

    @property
    def returning(self) -> Array:
        """Sorted ids that are stored and used again later."""
        return self.plan.ids["returning"][self.index]

    @property
    def final(self) -> Array:
        """Sorted ids of rows with a complete gradient."""
        return self.plan.ids["final"][self.index]
