# SPDX-License-Identifier: Apache-2.0
"""The ends of boxes of blocks, for the future of the rows in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gs_train.blocks.block_planes import MOMENTS
from gs_train.blocks.box_kernels import write_fits
from gs_train.blocks.partition import Floats, Ids
from gs_train.blocks.reach_tables import ReachTables
from gs_train.blocks.sleep_reach import SleepReach
from gs_train.blocks.slot_rows import SlotRows
from gs_train.machine.has_triton import has_triton
from gs_train.machine.host_copies import HostCopy

BOXED = {"means": slice(0, 3), "scales": slice(3, 6)}
"""The attributes that boxes of blocks hold, and their columns of geometry."""


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


def interval(values: Tensor, movement: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper ends, in float64, of the intervals from values to values + movement."""
    starts = values.double()
    # Infinite values stay where they are, and what is not a number is nowhere.
    ends = torch.where(values.isfinite(), starts + movement, starts)
    return torch.minimum(starts, ends), torch.maximum(starts, ends)


def ends_of(means: SleepingValues, scales: SleepingValues, until: int | None = None) -> Tensor:
    """(R, 9) float64 by row, of which blocks take the least: lower ends of the means, and the
    negative of their upper ends, of the largest log scale, and of the longest interval of a mean
    and of a log scale. Rows that never show have no part: values that are not finite stay so."""
    far, grown = means.movement(until), scales.movement(until).clamp_min(0.0)
    lower, upper = interval(means.values, far)
    largest = interval(scales.values, grown)[1].amax(1)
    moved = torch.stack([largest, far.abs().amax(1), grown.amax(1)], 1)
    rows = torch.cat([lower, -upper, -moved], 1)
    shows = means.values.isfinite().all(1) & (scales.values < math.inf).all(1)
    nothing = rows.new_tensor([math.inf] * 7 + [0.0] * 2)
    return torch.where(shows[:, None], rows, nothing)


def least_by_block(rows: SlotRows, tables: Mapping[str, Tensor], reaches: ReachTables) -> Tensor:
    """(n, 9) float64: the least of `ends_of` the rows of each block, for ever.

    On CUDA with Triton one kernel over the tables; of float64 operations in another order, so that
    an end differs by 2^-40 of the interval's length at most. The margins of an interval are larger.

    Args:
        rows: of the blocks.
        tables: by plane.
        reaches: of means and scales.
    """
    if rows.layout.is_cuda and has_triton() and reaches.is_bounded:
        from gs_train.blocks import block_triton

        return block_triton.least_by_block(rows.layout, rows.block_rows, tables, reaches)
    places = rows.places()
    last_step = tables["last_step"].view(-1)[places]
    w, m, v = (tables[f"geometry{moment}"][places] for moment in MOMENTS)
    means, scales = (
        SleepingValues(w[:, columns], m[:, columns], v[:, columns], last_step, reach)
        for columns, reach in zip(BOXED.values(), (reaches.means, reaches.scales), strict=True)
    )
    return by_block(ends_of(means, scales), rows.layout[1])


def by_block(ends: Tensor, counts: Tensor) -> Tensor:
    """The least of each block's rows; as of a row that never shows without."""
    return torch.segment_reduce(ends, "min", lengths=counts, unsafe=True, initial=math.inf)


class BoxFit:
    """A fit of some blocks that a device works on.

    Args:
        blocks: (n,) numbers.
        least: (m, 9), see `least_by_block`.
        chosen: (m,) bool, the rows of ``least`` that are of ``blocks``, in their order; None: all.
    """

    def __init__(self, blocks: Ids, least: Tensor, chosen: NDArray[np.bool_] | None = None) -> None:
        self.blocks = blocks
        self._least = HostCopy(least)
        self._chosen = np.ones(len(least), bool) if chosen is None else chosen

    def write(self, lower: Floats, upper: Floats, scale: Floats, longest: Floats) -> None:
        """Write the arrays of `BlockBoxes`, rounded outward; waits for the device."""
        least = self._least.numpy()
        write_fits(self.blocks, self._chosen, least, lower, upper, scale, longest)
