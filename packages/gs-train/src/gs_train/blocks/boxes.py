# SPDX-License-Identifier: Apache-2.0
"""Boxes of blocks that hold the whole future of sleeping rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gs_cull
from gs_train.blocks.box_fits import BoxFit, SleepingValues, by_block, ends_of, least_by_block
from gs_train.blocks.box_kernels import begin_fits, fill_slack, join_groups
from gs_train.blocks.partition import Floats, Ids
from gs_train.blocks.reach_tables import ReachTables
from gs_train.blocks.sleep_reach import SleepReach
from gs_train.blocks.slot_rows import SlotRows
from gs_train.blocks.still_rows import least_of_still
from gs_train.renderers.protocol import RenderOptions, View

__all__ = ["BlockBoxes", "Moving", "SleepingValues"]

_ARRAYS = ("lower", "upper", "scale", "longest", "ceilings", "fit_step")

GROUP = 64
"""Neighbouring blocks whose joint box is looked at first, of more blocks than `MOST_ALONE`."""

MOST_ALONE = 32768
"""A look at so many blocks takes a view half a millisecond, in which other threads run: groups save
less than they cost in calls."""


class Moving(NamedTuple):
    """A step that has not been taken yet.

    Attributes:
        blocks: (n,) with rows that it updates.
        most: that it moves a mean and a log scale.
    """

    blocks: Ids
    most: tuple[float, float]


class BlockBoxes:
    """A box of the means and a bound of the scales of each block, for the future of its rows.

    A fit takes rows as stored, asleep or not. The box of a block holds until a row of the block is
    updated, and no longer than step ``until`` where the fit has one. `slack` makes up for rates
    above the ceilings of the fit. The arrays are those of all fits after `settle`.

    Args:
        n_blocks: empty blocks, which no view sees.

    Attributes:
        lower, upper: (blocks, 3) float32, lower > upper for a block without rows.
        scale: (blocks,) float32, at least every scale, no logarithm.
        longest: (blocks, 2) float32, the longest interval of a mean and of a log scale.
        ceilings: (blocks, 2) float32, at most the ceilings of both rates at the fit.
        fit_step: (blocks,) int32, steps taken before the fit.
    """

    def __init__(self, n_blocks: int) -> None:
        self.lower = np.full((n_blocks, 3), np.inf, np.float32)
        self.upper = np.full((n_blocks, 3), -np.inf, np.float32)
        self.scale = np.zeros(n_blocks, np.float32)
        self.longest = np.zeros((n_blocks, 2), np.float32)
        self.ceilings = np.full((n_blocks, 2), np.inf, np.float32)
        self.fit_step = np.zeros(n_blocks, np.int32)
        self._coming: list[BoxFit] = []
        self._groups: BlockBoxes | None = None
        self._is_stale = np.ones(-(-n_blocks // GROUP), bool)

    def __len__(self) -> int:
        return len(self.scale)

    def fit(
        self,
        blocks: Ids,
        counts: Ids,
        *,
        means: SleepingValues,
        scales: SleepingValues,
        until: int | None = None,
    ) -> None:
        """Replace the boxes of some blocks by the joined intervals of their rows.

        Args:
            blocks: (n,) numbers of the blocks to fit, all different.
            counts: (n,) rows of each block; rows lie block after block.
            means, scales: of these rows; scales as logarithms.
            until: the last step for which the boxes must hold; None for ever.

        Asynchrony: on CUDA the work is enqueued on torch's current stream, and `settle` waits.

        Raises:
            ValueError: another number of rows than the counts say.
        """
        if int(counts.sum()) != len(means.values):
            raise ValueError(
                f"means must have {int(counts.sum())} rows as counts say, got {len(means.values)}"
            )
        self._begin(blocks, means.reach, scales.reach)
        ends = ends_of(means, scales, until)
        lengths = torch.from_numpy(counts.astype(np.int64)).to(ends.device)
        self._end(blocks, by_block(ends, lengths))

    def fit_still(
        self,
        blocks: Ids,
        counts: Ids,
        *,
        means: Floats,
        scales: Floats,
        reaches: Mapping[str, SleepReach],
    ) -> None:
        """The same of rows that have taken no step.

        Args:
            blocks: (n,) numbers of the blocks to fit, all different.
            counts: (n,) rows of each block; rows lie block after block.
            means: (R, 3).
            scales: (R, 3) logarithms.
            reaches: of ``means`` and ``scales``.
        """
        self._begin(blocks, reaches["means"], reaches["scales"])
        self._end(blocks, torch.from_numpy(least_of_still(counts, means, scales)))

    def fit_in_slots(
        self,
        blocks: Ids,
        rows: SlotRows,
        tables: Mapping[str, Tensor],
        reaches: ReachTables,
        *,
        chosen: NDArray[np.bool_] | None = None,
    ) -> None:
        """The same of blocks in slots, for ever.

        Args:
            blocks: (n,) numbers of blocks, all different.
            rows: of these.
            tables: by plane.
            reaches: of means and scales.
            chosen: (n,) the blocks to fit; None: all.

        Asynchrony: as `fit`.
        """
        fitted = blocks if chosen is None else blocks[chosen]
        self._begin(fitted, reaches.means, reaches.scales)
        self._end(fitted, least_by_block(rows, tables, reaches), chosen)

    def _begin(self, blocks: Ids, means: SleepReach, scales: SleepReach) -> None:
        now = (means.ceiling, scales.ceiling)
        written = (self.ceilings, self.fit_step, self._is_stale)
        begin_fits(blocks, GROUP, now, means.step, *written)

    def _end(self, blocks: Ids, least: Tensor, chosen: NDArray[np.bool_] | None = None) -> None:
        if len(blocks):
            self._coming.append(BoxFit(blocks, least, chosen))
            if not least.is_cuda:
                self.settle()

    def settle(self) -> None:
        """Wait for fits that a device has not finished."""
        for fit in self._coming:
            fit.write(self.lower, self.upper, self.scale, self.longest)
        self._coming.clear()

    def state(self) -> dict[str, np.ndarray]:
        """The arrays by name, for a snapshot."""
        self.settle()
        return {name: getattr(self, name) for name in _ARRAYS}

    def slack(
        self,
        means: SleepReach,
        scales: SleepReach,
        moving: Moving | None = None,
        blocks: Ids | None = None,
    ) -> Floats:
        """How far means and log scales may leave the box of the fit, because rates have risen above
        the ceilings of the fit, or because of a step that is to come.

        Args:
            means, scales: of the groups' present ceilings.
            moving: what a step is to move; None: nothing.
            blocks: (n,) numbers; None: all.

        Returns:
            (n, 2) float32.
        """
        self.settle()
        if blocks is None:
            blocks = np.arange(len(self))
        moves, most = np.zeros(len(self), bool), (0.0, 0.0)
        if moving is not None:
            moves[moving.blocks], most = True, moving.most
        slack = np.empty((len(blocks), 2), np.float32)
        fill_slack(
            *(blocks, self.fit_step, self.ceilings, self.longest),
            (means.later_rates, scales.later_rates),
            (means.ceiling, scales.ceiling),
            *(moves, most, slack),
        )
        return slack

    def candidates(
        self,
        views: Sequence[View],
        options: RenderOptions,
        means: SleepReach,
        scales: SleepReach,
        *,
        rects: NDArray[np.int64] | None = None,
        moving: Moving | None = None,
    ) -> gs_cull.Visibility:
        """The blocks that each view may see.

        Args:
            views: at least one.
            options: by which rules a renderer draws.
            means, scales: of the groups' present ceilings.
            rects: see :func:`gs_cull.cull`.
            moving: what a step is to move before the views are drawn; None: nothing.

        Returns:
            Sets of blocks: every block with a row that a view sees is in the view's set.

        Cost: of a look at all blocks up to `MOST_ALONE`, else at their groups and the blocks of
            those that some view may see.
        """
        blocks = None
        if len(self) > MOST_ALONE:
            grouped = None if moving is None else _grouped(moving)
            near = self._up_to_date_groups().candidates(
                views, options, means, scales, rects=rects, moving=grouped
            )
            members = np.asarray(near.ids).astype(np.int64)[:, None] * GROUP + np.arange(GROUP)
            blocks = members[members < len(self)]
        rules: dict[str, Any] = options._asdict()
        for name in ("radius_clip", "antialiased"):  # which boxes do not know
            rules.pop(name, None)
        found = self._native(self.slack(means, scales, moving, blocks), blocks).visible(
            np.stack([view.on_host[0] for view in views]),
            np.stack([view.on_host[1] for view in views]),
            np.array([view.width for view in views]),
            np.array([view.height for view in views]),
            rects=rects,
            **rules,
        )
        if blocks is None:
            return found
        return replace(found, ids=blocks[found.ids].astype(np.int32))

    def _up_to_date_groups(self) -> BlockBoxes:
        """Boxes that hold those of `GROUP` neighbouring blocks each."""
        self.settle()
        if self._groups is None:
            self._groups = BlockBoxes(len(self._is_stale))
        groups, stale = self._groups, np.flatnonzero(self._is_stale)
        self._is_stale[:] = False
        groups._is_stale[stale // GROUP] = True
        own, joined = (tuple(getattr(boxes, n) for n in _ARRAYS) for boxes in (self, groups))
        join_groups(stale, GROUP, own, joined)
        return groups

    def within(
        self, low: Sequence[float], high: Sequence[float], means: SleepReach, scales: SleepReach
    ) -> Ids:
        """(n,) sorted, the blocks with means in the box from ``low`` to ``high``, and perhaps
        others.

        Args:
            means, scales: of the groups' present ceilings.
        """
        far = self.slack(means, scales)[:, :1].astype(np.float64)
        reaches = (self.lower - far <= np.array(high)) & (self.upper + far >= np.array(low))
        return np.flatnonzero(reaches.all(1))

    def _native(self, slack: Floats, blocks: Ids | None) -> gs_cull.Blocks:
        """Some blocks as gs-cull tests them, for which the number of rows does not count."""
        n_blocks = len(slack)
        # In the order of `gs_cull.Blocks.bounds`, of which the last counts rows.
        own = (self.lower, self.upper, self.scale)
        if blocks is not None:
            own = (self.lower[blocks], self.upper[blocks], self.scale[blocks])
        bounds: Any = *own, slack, np.zeros(n_blocks, np.int32)
        return gs_cull.Blocks(
            n_rows=n_blocks * 32,
            block_size=32,
            order=None,
            bounds=bounds,
            activated=False,
            slack=(0.0, 0.0),
        )


def _grouped(moving: Moving) -> Moving:
    return Moving(np.unique(moving.blocks // GROUP), moving.most)
