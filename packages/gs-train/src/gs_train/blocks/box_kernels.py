# SPDX-License-Identifier: Apache-2.0
"""Loops over boxes of blocks, on the calling thread and without Python's lock.

Arrays are those of :class:`gs_train.blocks.boxes.BlockBoxes`.
"""

import math

import numpy as np
from numba import njit

_LARGEST = float(np.finfo(np.float32).max)
# gs_cull's row test may round exp by 33 u.
_EXP_MARGIN = 1.0 + 2.0**-18
_SLACK_MARGIN = 1.0 + 2.0**-20


@njit(cache=True, nogil=True, error_model="numpy")
def above(value):  # type: ignore[no-untyped-def]
    """The smallest float32 that is no smaller than a float64; NaN stays NaN.

    Above the largest float32 that is inf, below the smallest one the smallest, which is finite.
    """
    rounded = np.float32(value)
    if np.float64(rounded) < value:
        # The next float32, as np.nextafter has it, which takes twice as long.
        step = np.int32(1) if rounded >= np.float32(0.0) else np.int32(-1)
        return np.int32(rounded.view(np.int32) + step).view(np.float32)
    return rounded


@njit(cache=True, nogil=True, error_model="numpy")
def below(value):  # type: ignore[no-untyped-def]
    """The largest float32 that is no larger than a float64; NaN stays NaN."""
    return -above(-value)


@njit(cache=True, nogil=True, error_model="numpy")
def begin_fits(blocks, group, now, step, ceilings, fit_step, is_stale):  # type: ignore[no-untyped-def]
    """Note when some blocks are fitted.

    Args:
        blocks: (n,) numbers.
        group: blocks of each entry of ``is_stale``.
        now: of both groups, the ceiling of the rates to come.
        step: steps taken so far.
    """
    first, second = below(now[0]), below(now[1])
    for i in range(len(blocks)):
        block = blocks[i]
        ceilings[block, 0], ceilings[block, 1] = first, second
        fit_step[block] = step
        is_stale[block // group] = True


@njit(cache=True, nogil=True, error_model="numpy")
def write_fits(blocks, chosen, least, lower, upper, scale, longest):  # type: ignore[no-untyped-def]
    """Write the boxes of some blocks, rounded outward.

    Args:
        blocks: (n,) numbers.
        chosen: (m,) which entries of ``least`` are of the blocks, in their order; n are.
        least: (m, 9) float64, see :func:`gs_train.blocks.box_fits.ends_of`.
    """
    i = 0
    for entry in range(len(least)):
        if not chosen[entry]:
            continue
        block, own = blocks[i], least[entry]
        i += 1
        for axis in range(3):
            lower[block, axis] = below(own[axis])
            upper[block, axis] = above(-own[3 + axis])
        largest = math.exp(np.float64(above(-own[6]))) * _EXP_MARGIN
        scale[block] = above(_LARGEST if largest > _LARGEST else largest)
        for k in range(2):
            length = above(-own[7 + k])
            longest[block, k] = np.float32(0.0) if length < 0.0 else length


@njit(cache=True, nogil=True, error_model="numpy")
def fill_slack(blocks, fit_step, ceilings, longest, later, now, moves, most, slack):  # type: ignore[no-untyped-def]
    """Fill ``slack`` (n, 2) float32: see :meth:`gs_train.blocks.boxes.BlockBoxes.slack`.

    Args:
        blocks: (n,) numbers.
        later: of both groups, by step from 0 on, the largest rate of the steps taken after it.
        now: of both groups, the ceiling of the rates to come.
        moves: (blocks,) whether a step is to move rows of a block.
        most: how far it moves values of both groups.
    """
    for i in range(len(blocks)):
        block = blocks[i]
        for k in range(2):
            rate, ceiling = max(later[k][fit_step[block]], now[k]), np.float64(ceilings[block, k])
            more = 0.0
            if rate > ceiling:
                more = np.float64(longest[block, k]) * (rate / ceiling - 1.0)
                # Without a rate at the fit, a row may go anywhere later.
                more = np.inf if np.isnan(more) else more
            if moves[block]:
                more += most[k]
            slack[i, k] = above(more * _SLACK_MARGIN)


@njit(cache=True, nogil=True, error_model="numpy")
def join_groups(groups, size, own, joined):  # type: ignore[no-untyped-def]
    """Join the boxes of ``size`` neighbouring blocks each.

    Args:
        groups: (n,) numbers of the groups to join.
        own, joined: ``lower``, ``upper``, ``scale``, ``longest``, ``ceilings`` and ``fit_step`` of
            blocks and of groups.
    """
    lower, upper, scale, longest, ceilings, fit_step = own
    low, high, largest, length, ceiling, step = joined
    for group in groups:
        first = group * size
        low[group], high[group], length[group] = lower[first], upper[first], longest[first]
        largest[group], ceiling[group] = scale[first], ceilings[first]
        step[group] = fit_step[first]
        for block in range(first + 1, min(first + size, len(scale))):
            for axis in range(3):
                low[group, axis] = min(low[group, axis], lower[block, axis])
                high[group, axis] = max(high[group, axis], upper[block, axis])
            largest[group] = max(largest[group], scale[block])
            step[group] = min(step[group], fit_step[block])
            for k in range(2):
                length[group, k] = max(length[group, k], longest[block, k])
                ceiling[group, k] = min(ceiling[group, k], ceilings[block, k])


@njit(cache=True, nogil=True, error_model="numpy")
def count_rows(counts, blocks, mask, n_views):  # type: ignore[no-untyped-def]
    """(V,) int64 rows in the blocks of each view, added up.

    Args:
        counts: (blocks,) rows of each.
        blocks: (n,) numbers.
        mask: (n, ceil(V / 32)) uint32: bit v says that view v may see rows of the block.
    """
    found = np.zeros(n_views, np.int64)
    for i in range(len(blocks)):
        for view in range(n_views):
            if (mask[i, view // 32] >> np.uint32(view % 32)) & np.uint32(1):
                found[view] += counts[blocks[i]]
    return found


@njit(cache=True, nogil=True)
def lay_out(slots, counts, masks):  # type: ignore[no-untyped-def]
    """(3 + words, n) int64 slots, counts, counts added up before each block, and (n, words) int32
    masks."""
    layout = np.empty((3 + masks.shape[1], len(slots)), np.int64)
    before = 0
    for i in range(len(slots)):
        layout[0, i], layout[1, i], layout[2, i] = slots[i], counts[i], before
        layout[3:, i] = masks[i]
        before += counts[i]
    return layout


@njit(cache=True, nogil=True)
def are_among(blocks, others):  # type: ignore[no-untyped-def]
    """Whether the blocks are among others, which are sorted."""
    for i in range(len(blocks)):
        place = np.searchsorted(others, blocks[i])
        if place == len(others) or others[place] != blocks[i]:
            return False
    return True
