# SPDX-License-Identifier: Apache-2.0
"""Boxes of blocks that hold the whole future of sleeping rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gs_cull
from gs_train.blocks.partition import Floats, Ids
from gs_train.blocks.rounding import float32_above, float32_below
from gs_train.blocks.sleep_reach import SleepReach
from gs_train.renderers.protocol import RenderOptions, View

_ARRAYS = ("lower", "upper", "scale", "longest", "ceilings", "fit_step")

_LARGEST = float(np.finfo(np.float32).max)
# gs_cull's row test may round exp by 33 u.
_EXP_MARGIN = 1.0 + 2.0**-18


class SleepingValues(NamedTuple):
    """Values of one attribute with their moments, as the last step of each row left them.

    Attributes:
        values, exp_avg, exp_avg_sq: (R, 3) float32, on any device.
        last_step: (R,) ints there.
        reach: bounds of the attribute's group.
    """

    values: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    last_step: Tensor
    reach: SleepReach

    def movement(self, until: int | None = None) -> Tensor:
        """(R, 3) float64 with its sign, the most that a later value differs from the stored one."""
        reach = self.reach.reach(*self[:4], until)
        return torch.where(self.exp_avg > 0.0, -reach, reach)


def enclose(values: Tensor, movement: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper ends of the intervals from values to values + movement, rounded outward."""
    starts = values.double()
    # Infinite values stay where they are, and what is not a number is nowhere.
    ends = torch.where(values.isfinite(), starts + movement, starts)
    return float32_below(torch.minimum(starts, ends)), float32_above(torch.maximum(starts, ends))


class _Fit:
    """A fit of some blocks that a device works on.

    Args:
        blocks: (n,) with rows.
        least: (n, 9) float64: lower ends, and the negative of upper ends, scale and longest.
    """

    def __init__(self, blocks: Ids, least: Tensor) -> None:
        self.blocks = blocks
        self._least = least
        self._copied: torch.cuda.Event | None = None
        if least.is_cuda:
            self._least = torch.empty(least.shape, dtype=least.dtype, pin_memory=True)
            self._least.copy_(least, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(least.device))

    def least(self) -> Tensor:
        """On the host; waits for the device."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._least


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
        self._coming: list[_Fit] = []

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
        far, grown = means.movement(until), scales.movement(until).clamp_min(0.0)
        lower, upper = enclose(means.values, far)
        _, largest = enclose(scales.values, grown)
        scale = (largest.double().exp().amax(1) * _EXP_MARGIN).clamp_max(_LARGEST)
        moved = torch.stack([far.abs().amax(1), grown.amax(1)], 1)
        # By row: what blocks take the least of.
        ends = torch.cat([lower.double(), -upper.double(), -scale[:, None], -moved], 1)
        # Rows that never show: values that are not finite stay so.
        shows = means.values.isfinite().all(1) & (scales.values < math.inf).all(1)
        nothing = ends.new_tensor([math.inf] * 6 + [0.0] * 3)
        ends = torch.where(shows[:, None], ends, nothing)
        self.lower[blocks], self.upper[blocks] = np.inf, -np.inf
        self.scale[blocks], self.longest[blocks] = 0.0, 0.0
        ceilings = torch.tensor([means.reach.ceiling, scales.reach.ceiling], dtype=torch.float64)
        self.ceilings[blocks] = float32_below(ceilings).numpy()
        self.fit_step[blocks] = means.reach.step
        full = blocks[counts > 0]
        if not len(full):
            return
        lengths = torch.from_numpy(counts[counts > 0].astype(np.int64)).to(ends.device)
        least = torch.segment_reduce(ends, "min", lengths=lengths, unsafe=True)
        self._coming.append(_Fit(full, least))
        if least.device.type == "cpu":
            self.settle()

    def settle(self) -> None:
        """Wait for fits that a device has not finished."""
        for fit in self._coming:
            least = fit.least()
            self.lower[fit.blocks] = least[:, :3].float().numpy()
            self.upper[fit.blocks] = -least[:, 3:6].float().numpy()
            self.scale[fit.blocks] = float32_above(-least[:, 6]).numpy()
            self.longest[fit.blocks] = float32_above(-least[:, 7:]).numpy()
        self._coming.clear()

    def state(self) -> dict[str, np.ndarray]:
        """The arrays by name, for a snapshot."""
        self.settle()
        return {name: getattr(self, name) for name in _ARRAYS}

    def slack(self, means: SleepReach, scales: SleepReach) -> Floats:
        """(blocks, 2) how far means and log scales may leave the box of the fit, because rates have
        risen above the ceilings of the fit."""
        self.settle()
        since = self.fit_step.astype(np.int64)
        now = np.stack([means.ceilings(since), scales.ceilings(since)], 1)
        with np.errstate(all="ignore"):
            ratio = now / self.ceilings
            more = np.where(now > self.ceilings, self.longest * (ratio - 1.0), 0.0)
        # Without a rate at the fit, a row may go anywhere later.
        more = np.where(np.isnan(more), np.inf, more)
        return float32_above(torch.from_numpy(more * (1.0 + 2.0**-20))).numpy()

    def candidates(
        self,
        views: Sequence[View],
        options: RenderOptions,
        means: SleepReach,
        scales: SleepReach,
        *,
        rects: NDArray[np.int64] | None = None,
    ) -> gs_cull.Visibility:
        """The blocks that each view may see.

        Args:
            views: at least one.
            options: by which rules a renderer draws.
            means, scales: of the groups' present ceilings.
            rects: see :func:`gs_cull.cull`.

        Returns:
            Sets of blocks: every block with a row that a view sees is in the view's set.
        """
        rules: dict[str, Any] = options._asdict()
        for name in ("radius_clip", "antialiased"):  # which boxes do not know
            rules.pop(name, None)
        return self._native(self.slack(means, scales)).visible(
            np.stack([view.on_host[0] for view in views]),
            np.stack([view.on_host[1] for view in views]),
            np.array([view.width for view in views]),
            np.array([view.height for view in views]),
            rects=rects,
            **rules,
        )

    def _native(self, slack: Floats) -> gs_cull.Blocks:
        """As gs-cull tests blocks, for which the number of rows does not count."""
        n_blocks = len(self)
        # In the order of `gs_cull.Blocks.bounds`, of which the last counts rows.
        bounds: Any = self.lower, self.upper, self.scale, slack, np.zeros(n_blocks, np.int32)
        return gs_cull.Blocks(
            n_rows=n_blocks * 32,
            block_size=32,
            order=None,
            bounds=bounds,
            activated=False,
            slack=(0.0, 0.0),
        )
