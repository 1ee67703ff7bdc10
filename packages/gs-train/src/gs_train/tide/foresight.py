# SPDX-License-Identifier: Apache-2.0
"""When blocks are used next, told to their cache: the views of all steps to come are known."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gs_order import Upcoming
from gs_train.blocks.partition import Ids
from gs_train.blocks.stored_rows import StoredRows
from gs_train.renderers import Renderer, View

FETCHED = 4
"""Steps behind the next one whose blocks are read ahead."""


class Foresight:
    """Hints for the cache of stored rows. Changes no result, and few of its lists are exact: blocks
    that move into a view after the list was made are brought without a hint.

    Args:
        rows: in blocks.
        renderer: by whose rules views see blocks.
        views_of: gives the views of a step, counted from 0; none behind the last step.
        n_known: steps whose blocks are known at least. Twice as many are listed at once.
        n_fetched: blocks of so many steps are read ahead, beside those of the next one, which the
            engine expects.

    Memory: 24 bytes for each use of a block in a known step, and 1 a block.
    """

    def __init__(
        self,
        rows: StoredRows,
        renderer: Renderer,
        views_of: Callable[[int], Sequence[View]],
        *,
        n_known: int = 256,
        n_fetched: int = FETCHED,
    ) -> None:
        self._rows = rows
        self._renderer = renderer
        self._views_of = views_of
        self._n_known = n_known
        self._n_fetched = n_fetched
        self._upcoming = Upcoming(len(rows.boxes))
        self._first = rows.step
        self._lists: deque[Ids] = deque()
        self._is_named = np.zeros(len(rows.boxes), bool)
        self._has_ended = False
        self._learn()

    def after_update(self) -> None:
        """A step has ended, whose use of blocks has used up their hints: tell when these are used
        next, and read ahead."""
        self._learn()
        if not self._lists:
            return  # of a step behind the last one that is known
        self._lists.popleft()
        self._hint(*self._upcoming.advance())
        later = itertools.islice(self._lists, 1, 1 + self._n_fetched)
        blocks = self._in_order_of_use(later)
        if len(blocks):
            self._rows.cache.fetch(blocks)

    def _in_order_of_use(self, lists: Iterable[Ids]) -> Ids:
        """The blocks of some steps, each once, as the steps need them."""
        parts = [np.empty(0, np.int64)]
        for blocks in lists:
            parts.append(blocks[~self._is_named[blocks]])
            self._is_named[blocks] = True
        found = np.concatenate(parts)
        self._is_named[found] = False
        return found

    def _learn(self) -> None:
        """List the blocks of further steps where few are known."""
        if self._has_ended or len(self._lists) > self._n_known:
            return
        lists: list[Ids] = []
        start = self._first + self._upcoming.step + len(self._lists)
        for step in range(start, start + 2 * self._n_known):
            views = self._views_of(step)
            if not views:
                self._has_ended = True
                break
            lists.append(self._rows.candidates(views, self._renderer).ids.astype(np.int64))
        self._lists += lists
        self._hint(*self._upcoming.add(lists))

    def _hint(self, blocks: Ids, steps: Ids) -> None:
        is_known = steps < Upcoming.NEVER
        self._rows.cache.hint(blocks[is_known], steps[is_known])
