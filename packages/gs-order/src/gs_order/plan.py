# SPDX-License-Identifier: Apache-2.0
"""What each microbatch of a batch loads, keeps, stores and finishes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gs_order import plan_numpy
from gs_order.arrays import Array, as_words, check_mask, check_n_views, is_torch, to_numpy
from gs_order.plan_host import HostPlan, host_plan
from gs_order.plan_numpy import KINDS, Lists
from gs_order.ragged import Ragged

RETAIN = ("previous", "last_use")


@dataclass(frozen=True)
class Plan:
    """A batch, microbatch by microbatch in running order: ``plan[i]``, ``len(plan)``.

    With S_i the visible set of microbatch i, each part a sorted list:

        load        rows of S_i that come from the host
        retain      rows of S_i that are on the device already: S_i without load
        store       rows of S_i whose gradient leaves afterwards
        carry       rows of S_i that stay, parameters and gradient sum: S_i without store
        final       rows of S_i that no later microbatch sees: their gradient is complete
        returning   rows stored though a later microbatch sees them: store without final

    Every list is kept once, as positions within the (sorted) visible list; ids are looked up.

    Device buffers:
        ``retain="previous"``: two buffers take turns. Row k of S_i lies in slot k of buffer i % 2;
        retained rows are copied from the other buffer, from the slots ``retain_sources``.
        Otherwise: one buffer. A row keeps its slot from load to store, rows that wait included.
        With ``ahead`` = a, loads of microbatch i + a use no slot of a row that is on the device
        while i runs, so that they may run beside it.

    Attributes:
        order: (B,) int64 numpy, the view that each microbatch renders.
        retain, ahead: as given to `plan`.
        visible: ids of S_i.
        positions: ``load``, ``retain``, ``store``, ``carry``, ``returning``, ``final``: int32
            positions within ``visible[i]``.
        slots: int32 slot of each visible row; None where slot and position are the same.
        n_slots: rows that one device buffer must hold.
    """

    order: np.ndarray[Any, Any]
    retain: str | int
    ahead: int
    visible: Ragged
    positions: dict[str, Ragged]
    slots: Ragged | None
    n_slots: int

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, i: int) -> Step:
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
    def counts(self) -> dict[str, np.ndarray[Any, Any]]:
        """(B,) int64 lengths of ``visible`` and of each list, on the host."""
        lists = {"visible": self.visible, **self.positions}
        return {kind: lists[kind].counts for kind in KINDS}

    def to_host(self) -> HostPlan:
        """The ids that host threads need, on their way to host memory.

        Returns:
            ids of ``load``, ``store``, ``final`` and ``returning``.

        Asynchrony: from CUDA, one copy into page-locked memory is enqueued on the current stream
            and this returns; the handle waits when asked. From the CPU nothing is pending.
        """
        return host_plan(self.visible, self.positions)


@dataclass(frozen=True)
class Step:
    """Microbatch i of a plan; ids and positions are arrays of the kind the plan was made of."""

    plan: Plan
    index: int

    @property
    def view(self) -> int:
        """The view it renders."""
        return int(self.plan.order[self.index])

    @property
    def visible(self) -> Array:
        """(n,) sorted ids of S_i."""
        return self.plan.visible[self.index]

    @property
    def slots(self) -> Array:
        """(n,) int32 slot of each visible row in the device buffer."""
        if self.plan.slots is not None:
            return self.plan.slots[self.index]
        n = len(self.visible)
        if is_torch(self.visible):
            import torch

            return torch.arange(n, dtype=torch.int32, device=self.visible.device)
        return np.arange(n, dtype=np.int32)

    def positions(self, kind: str) -> Array:
        """int32 positions of a list (``"load"``, ``"store"``, ...) within ``visible``."""
        return self.plan.positions[kind][self.index]

    def slots_of(self, kind: str) -> Array:
        """int32 slots of the rows of a list."""
        places = self.positions(kind)
        return places if self.plan.slots is None else self.plan.slots[self.index][places]

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
        return self._ids("load")

    @property
    def retain(self) -> Array:
        """Sorted ids that are on the device already."""
        return self._ids("retain")

    @property
    def store(self) -> Array:
        """Sorted ids whose gradient leaves afterwards."""
        return self._ids("store")

    @property
    def carry(self) -> Array:
        """Sorted ids that stay on the device."""
        return self._ids("carry")

    @property
    def returning(self) -> Array:
        """Sorted ids that are stored and used again later."""
        return self._ids("returning")

    @property
    def final(self) -> Array:
        """Sorted ids whose gradient is complete."""
        return self._ids("final")

    def _ids(self, kind: str) -> Array:
        return self.visible[self.positions(kind)]


def plan(
    ids: Array, mask: Array, order: Array, *, retain: str | int = "previous", ahead: int = 0
) -> Plan:
    """What moves, stays and finishes at each microbatch.

    Args:
        ids: (U,) int32 or int64, sorted, unique; numpy, or torch on any device.
        mask: (U, W) uint32 numpy or int32 torch, of the same kind and device: bit b % 32, least
            significant first, of word b // 32 says that view b sees the row. Rows that no view
            sees take no part.
        order: (B,) permutation of the views, B >= 1.
        retain: what stays on the device. ``"previous"``: what the next microbatch sees as well.
            ``"last_use"``: everything until its last use, so that every row crosses once each way.
            A number of rows: until its last use while so many rows hold all that is on the device,
            else what is needed last leaves first (Belady).
        ahead: microbatches that loads run ahead of rendering. Counts towards a capacity, and keeps
            slots apart (see `Plan`).

    Returns:
        a `Plan` of arrays of the inputs' kind, on their device.

    Raises:
        ValueError: ids not sorted and unique, or not one for each row of the mask; a mask of
            another width than the views need, or with bits beyond them; an order that is no
            permutation or empty; an unknown ``retain``; a capacity below the rows that ``ahead`` +
            1 consecutive microbatches see together.
        TypeError: ids that are no integers of 32 or 64 bits, a mask that is not of 32-bit words,
            arrays of different kinds or devices, a capacity that is no integer.

    Asynchrony: on CUDA one synchronisation, for the counts; the lists are then enqueued on the
        current stream.
    Cost: proportional to U * B bits and to the lists' lengths; threads over rows on the CPU.

    >>> ids = np.array([10, 20, 30, 40], np.int32)
    >>> mask = np.array([[0b001], [0b011], [0b110], [0b101]], np.uint32)
    >>> step = plan(ids, mask, [0, 1, 2])[0]
    >>> [part.tolist() for part in (step.load, step.carry, step.returning, step.final)]
    [[10, 20, 40], [20], [40], [10]]
    """
    views = _checked_order(order)
    check_n_views(len(views), check_mask(mask))
    _check_arrays(ids, mask)
    if isinstance(retain, str) and retain not in RETAIN:
        raise ValueError(f"retain must be one of {', '.join(RETAIN)} or rows, got {retain!r}")
    if not isinstance(retain, str | int | np.integer):
        raise TypeError(f"retain must be a word or a whole number of rows, got {retain!r}")
    if ahead < 0:
        raise ValueError(f"ahead must be at least 0, got {ahead}")
    lists, slots, n_slots = (_plan_torch if is_torch(ids) else _plan_numpy)(
        ids, mask, views, retain, ahead
    )
    ragged = {kind: Ragged(lists.values[kind], lists.offsets[kind]) for kind in KINDS}
    visible = ragged.pop("visible")
    return Plan(
        order=views,
        retain=retain,
        ahead=ahead,
        visible=visible,
        positions=ragged,
        slots=None if slots is None else Ragged(slots, visible.offsets),
        n_slots=n_slots,
    )


def _plan_numpy(
    ids: Any, mask: Any, views: np.ndarray[Any, Any], retain: str | int, ahead: int
) -> tuple[Lists, Array | None, int]:
    _check_rising(bool((ids[1:] > ids[:-1]).all()))
    visible = plan_numpy.visible_sets(as_words(mask), views)
    if retain == "previous":
        sets = plan_numpy.sets_to_previous(visible)
    elif retain == "last_use":
        sets = plan_numpy.sets_to_last_use(visible)
    else:
        _check_capacity(int(retain), plan_numpy.needed_together(visible, ahead), ahead)
        sets = plan_numpy.sets_within(visible, int(retain), ahead)
    lists, starts = plan_numpy.extract(sets, np.ascontiguousarray(ids))
    if retain == "previous":
        return lists, None, int(np.diff(lists.offsets["visible"]).max())
    n_slots = _n_slots(lists, ahead)
    return lists, plan_numpy.assign_slots(sets, lists, starts, n_slots), n_slots


def _plan_torch(
    ids: Any, mask: Any, views: np.ndarray[Any, Any], retain: str | int, ahead: int
) -> tuple[Lists, Array | None, int]:
    from gs_order.plan_torch import Planner

    planner = Planner(ids.detach(), mask.detach(), views)
    counts = planner.count(retain, ahead)
    _check_rising(counts.ids_rise)
    if not counts.bits_belong:
        raise ValueError(f"mask must have no bits beyond its {len(views)} views, got some")
    if not isinstance(retain, str):
        _check_capacity(retain, counts.together, ahead)
    lists = planner.lists(retain, counts)
    if retain == "previous":
        return lists, None, int(counts.visible.max())
    n_slots = _n_slots(lists, ahead)
    return lists, planner.slots(lists, n_slots, ahead), n_slots


def _n_slots(lists: Lists, ahead: int) -> int:
    """Most rows on the device: stores of microbatch i - 1 - ahead precede loads of i."""
    loaded = lists.offsets["load"][1:]
    stored = lists.offsets["store"]
    freed = [stored[max(0, i - ahead)] for i in range(len(loaded))]
    return int((loaded - freed).max())


def _checked_order(order: Array) -> np.ndarray[Any, Any]:
    views = to_numpy(order, "order")
    if views.ndim != 1 or len(views) == 0:
        raise ValueError(f"order must be (B,) with at least one view, got shape {views.shape}")
    if not np.issubdtype(views.dtype, np.integer):
        raise TypeError(f"order must be of integers, got {views.dtype}")
    if (np.sort(views) != np.arange(len(views))).any():
        raise ValueError(
            f"order must be a permutation of 0 .. {len(views) - 1}, got {views.tolist()}"
        )
    return views.astype(np.int64)


def _check_arrays(ids: Array, mask: Array) -> None:
    if is_torch(ids) != is_torch(mask) or not hasattr(ids, "dtype"):
        raise TypeError(
            "ids and mask must both be numpy arrays or both torch tensors, "
            f"got {type(ids).__name__} and {type(mask).__name__}"
        )
    if is_torch(ids) and ids.device != mask.device:
        raise TypeError(f"ids and mask must be on one device, got {ids.device} and {mask.device}")
    if str(ids.dtype).removeprefix("torch.") not in ("int32", "int64"):
        raise TypeError(f"ids must be int32 or int64, got {ids.dtype}")
    if tuple(ids.shape) != (mask.shape[0],):
        raise ValueError(
            f"ids must have one entry a row of mask, ({mask.shape[0]},), got {tuple(ids.shape)}"
        )


def _check_rising(rising: bool) -> None:
    if not rising:
        raise ValueError(
            "ids must be sorted and unique, got an id that is not above the one before"
        )


def _check_capacity(capacity: int, together: np.ndarray[Any, Any], ahead: int) -> None:
    if capacity < together.max():
        raise ValueError(
            f"retain must be at least {together.max()} rows, the most that "
            f"{ahead + 1} consecutive microbatches see, got {capacity}"
        )
