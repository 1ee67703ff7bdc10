# SPDX-License-Identifier: Apache-2.0
"""When items are needed next, while a known sequence of needs goes by and grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gs_order.arrays import Array, to_numpy
from gs_order.checks import sequence, whole_number
from gs_order.ragged import offsets_of

Ints = NDArray[np.int64]


class Upcoming:
    """The next need of each item: what Belady's rule (1966) asks for in a cache that looks ahead.

    Needs come in lists, one a step, each time as many steps as are known. `add` and `advance` tell
    whose next need has changed, so that a cache is told no more than that.

    Args:
        n_items: items are numbered from 0 to ``n_items`` - 1.

    Attributes:
        NEVER: in place of a step, for an item that no known step needs.

    Raises:
        ValueError, TypeError: ``n_items`` is no whole number of at least 0.

    Cost: 8 bytes an item; 16 bytes a need that has not passed, and up to 16 of one that has.

    >>> upcoming = Upcoming(4)
    >>> items, steps = upcoming.add([[0, 1], [1, 3], [0]])
    >>> items.tolist(), steps.tolist()
    ([0, 1, 3], [0, 0, 1])
    >>> items, steps = upcoming.advance()
    >>> items.tolist(), steps.tolist()
    ([0, 1], [2, 1])
    """

    NEVER = (1 << 31) - 1

    def __init__(self, n_items: int) -> None:
        n = whole_number("n_items", n_items, most=1 << 40)
        self._step = 0
        self._items: Ints = np.empty(0, np.int64)  # of all steps from the present one on
        self._next: Ints = np.empty(0, np.int64)  # the step that needs each of these again
        self._ends: list[int] = []  # of the lists of the known steps
        self._first = 0  # needs that have passed, of all arrays
        self._last: Ints = np.full(n, -1)  # the place of each item's last need, passed ones counted

    @property
    def n_items(self) -> int:
        return len(self._last)

    @property
    def step(self) -> int:
        """The step that `advance` passes next."""
        return self._step

    @property
    def n_known(self) -> int:
        """Steps whose needs are known, from `step` on."""
        return len(self._ends)

    def add(self, lists: Sequence[Array]) -> tuple[Ints, Ints]:
        """Make the needs of further steps known.

        Args:
            lists: for each step after the known ones its items, all different; numpy arrays, or
                tensors (a tensor is copied to the host).

        Returns:
            (n,) items that no step was known to need, sorted, and (n,) the steps that need these
            first.

        Raises:
            ValueError: an item out of range, or twice in a list. TypeError: items that are no
                integers. Nothing has changed then.

        Cost: a sort of the items.
        """
        new = [
            _checked(ids, step, self.n_items) for step, ids in enumerate(sequence("lists", lists))
        ]
        if not new:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        counts = np.array([len(ids) for ids in new])
        items = np.concatenate(new)
        start = self._step + len(self._ends)
        steps = np.repeat(np.arange(start, start + len(new)), counts)
        order = np.argsort(items, kind="stable")  # of an item, the steps in their order
        is_first = np.ones(len(items), bool)
        is_first[1:] = items[order[1:]] != items[order[:-1]]
        again = np.flatnonzero(~is_first)
        twice = again[steps[order[again]] == steps[order[again - 1]]]
        if len(twice):
            step = steps[order[twice]].min() - start
            raise ValueError(f"lists[{step}] must not name an item twice")
        following = np.full(len(items), self.NEVER)
        following[order[again - 1]] = steps[order[again]]
        # The known needs of these items are not the last ones any more.
        first = order[is_first]
        place = self._last[items[first]] - self._first
        is_known = place >= 0
        self._next[place[is_known]] = steps[first[is_known]]
        n_before = len(self._items)
        is_last = np.append(is_first[1:], True) if len(items) else is_first
        last = order[is_last]
        self._last[items[last]] = self._first + n_before + last
        self._items = np.concatenate([self._items, items])
        self._next = np.concatenate([self._next, following])
        self._ends += (self._first + n_before + offsets_of(counts)[1:]).tolist()
        return items[first[~is_known]], steps[first[~is_known]]

    def advance(self) -> tuple[Ints, Ints]:
        """Let the present step pass.

        Returns:
            (n,) its items as they were given, and (n,) the steps that need these next; `NEVER`
            where none is known.

        Raises:
            IndexError: the needs of the step are not known.

        Cost: that of the step's items, in the long run.
        """
        if not self._ends:
            raise IndexError(f"step {self._step} must be known, got no needs of it")
        n = self._ends.pop(0) - self._first
        items, following = self._items[:n], self._next[:n]
        self._items, self._next = self._items[n:], self._next[n:]
        self._first += n
        self._step += 1
        return items, following

    def __repr__(self) -> str:
        return f"Upcoming({self.n_items} items, step {self._step}, {self.n_known} known)"


def _checked(ids: Array, step: int, n_items: int) -> NDArray[Any]:
    items = to_numpy(ids, f"lists[{step}]")
    if items.size == 0:
        return np.empty(0, np.int64)
    if items.dtype.kind not in "iu":
        raise TypeError(f"lists[{step}] must be of integers, got {items.dtype}")
    if items.ndim != 1 or items.min() < 0 or items.max() >= n_items:
        raise ValueError(f"lists[{step}] must be of items from 0 to {n_items - 1}, got others")
    return items.astype(np.int64)
