# SPDX-License-Identifier: Apache-2.0
"""Lists of the blocks that views may see, made when they are wanted or a step before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gs_cull import Visibility
from gs_train.blocks.box_kernels import are_among
from gs_train.blocks.boxes import BlockBoxes, Moving
from gs_train.blocks.partition import Ids
from gs_train.blocks.sleep_reach import SleepReach
from gs_train.machine.side_thread import SideThread
from gs_train.renderers import Renderer, View


class BlocksSeen(NamedTuple):
    """Blocks with all rows that some views see, and perhaps others.

    Attributes:
        blocks: (n,) sorted.
        mask: (n, ceil(V / 32)) uint32: bit v says that view v may see rows of the block.
    """

    blocks: Ids
    mask: NDArray[np.uint32]


class _Early(NamedTuple):
    """Blocks that a batch to come may see, found before the present step has ended.

    Attributes:
        views: of the batch.
        seen: its blocks.
        step: steps taken before.
        ceilings: of the rates, by attribute, that the list was made for.
        moving: what the list assumes of the step that follows; None: blocks that it changes may be
            missing.
        rates: that it assumes, by attribute.
    """

    views: tuple[View, ...]
    seen: BlocksSeen
    step: int
    ceilings: dict[str, float]
    moving: Moving | None
    rates: dict[str, float]

    def is_of(self, views: Sequence[View]) -> bool:
        """Whether it is of these very views."""
        return list(map(id, self.views)) == list(map(id, views))

    def holds(self, step: int, reaches: Mapping[str, SleepReach]) -> bool:
        """Whether the list still says something after so many steps."""
        return step - self.step <= 1 and all(
            max(reach.ceiling, reach.last_rate) <= self.ceilings[name]
            and (step == self.step or reach.last_rate <= self.rates[name])
            for name, reach in reaches.items()
        )


class BlockLists:
    """Lists blocks through their boxes.

    Args:
        boxes: of all blocks.
        reaches: of ``means`` and ``scales``.
        side: makes the lists that nobody waits for yet.

    Threads: one at a time. Boxes and reaches change after `end`, and before the next call.
    """

    def __init__(
        self, boxes: BlockBoxes, reaches: Mapping[str, SleepReach], side: SideThread
    ) -> None:
        self._boxes = boxes
        self._reaches = reaches
        self._side = side
        self._early: _Early | None = None
        self._then: tuple[View, ...] = ()  # of the batch after that of the early list
        self._begun: Future[_Early] | None = None

    @property
    def _step(self) -> int:
        return self._reaches["means"].step

    def candidates(
        self,
        views: Sequence[View],
        renderer: Renderer,
        *,
        rects: NDArray[np.int64] | None = None,
    ) -> Visibility:
        """See `BlockBoxes.candidates`."""
        self.end()
        return self._found(views, renderer, rects=rects)

    def end(self) -> None:
        """Wait for a list that is being made. Every other call begins with that."""
        if self._begun is None:
            return
        wait((self._begun,))  # an interrupt leaves it begun
        begun, self._begun = self._begun, None
        self._early = begun.result()

    def expect(
        self,
        views: Sequence[View],
        renderer: Renderer,
        blocks: Ids | None,
        rates: Mapping[str, float] | None,
        then: Sequence[View] = (),
    ) -> BlocksSeen:
        """List what a batch may see, before the present step has ended.

        Args:
            blocks: that the step may change; None: not known.
            rates: by attribute, of the step; None: at most the ceilings.
            then: of the batch after that one, whose list `of` begins to make.
        """
        self.end()
        self._then = tuple(then)
        early = self._early
        if early is None or not early.is_of(views) or early.step != self._step:
            early = self._early = self._listed(views, renderer, blocks, rates)
        return early.seen

    def _listed(
        self,
        views: Sequence[View],
        renderer: Renderer,
        blocks: Ids | None,
        rates: Mapping[str, float] | None,
    ) -> _Early:
        ceilings = {name: reach.ceiling for name, reach in self._reaches.items()}
        known = {name: ceilings[name] if rates is None else rates[name] for name in ceilings}
        moving = None
        if blocks is not None:
            means, scales = (self._reaches[n].largest_move(known[n]) for n in ("means", "scales"))
            moving = Moving(blocks, (means, scales))
        seen = _blocks_seen(self._found(views, renderer, moving=moving))
        return _Early(tuple(views), seen, self._step, ceilings, moving, known)

    def _found(
        self,
        views: Sequence[View],
        renderer: Renderer,
        *,
        rects: NDArray[np.int64] | None = None,
        moving: Moving | None = None,
    ) -> Visibility:
        means, scales = self._reaches["means"], self._reaches["scales"]
        return self._boxes.candidates(
            views, renderer.options, means, scales, rects=rects, moving=moving
        )

    def of(self, views: Sequence[View], renderer: Renderer, changed: Ids) -> BlocksSeen:
        """The blocks that views may see. Where these were expected, nothing is waited for, and the
        list of the batch after is begun.

        Args:
            changed: blocks that the last step changed.
        """
        self.end()
        early, then = self._early, self._then
        if early is None or not early.is_of(views):  # a look between two batches
            return _blocks_seen(self._found(views, renderer))
        self._early, self._then = None, ()
        seen = self._up_to_date(early, renderer, changed)
        if then:
            self._begun = self._side.begin(
                lambda: self._listed(then, renderer, seen.blocks, rates=None)
            )
        return seen

    def _up_to_date(self, early: _Early, renderer: Renderer, changed: Ids) -> BlocksSeen:
        if not early.holds(self._step, self._reaches):
            return _blocks_seen(self._found(early.views, renderer))
        if self._step == early.step:
            return early.seen
        if early.moving is not None and are_among(changed, early.moving.blocks):
            return early.seen
        return _with_all_of(changed, early.seen, len(early.views))


def _blocks_seen(found: Visibility) -> BlocksSeen:
    return BlocksSeen(np.asarray(found.ids).astype(np.int64), np.asarray(found.mask, np.uint32))


def _with_all_of(blocks: Ids, seen: BlocksSeen, n_views: int) -> BlocksSeen:
    """The same, and these blocks for every view."""
    every = np.full(seen.mask.shape[1], 0xFFFFFFFF, np.uint32)
    if n_views % 32:
        every[-1] >>= np.uint32(32 - n_views % 32)
    union = np.union1d(seen.blocks, blocks)
    mask = np.zeros((len(union), len(every)), np.uint32)
    mask[np.searchsorted(union, seen.blocks)] = seen.mask
    mask[np.searchsorted(union, blocks)] = every
    return BlocksSeen(union, mask)
