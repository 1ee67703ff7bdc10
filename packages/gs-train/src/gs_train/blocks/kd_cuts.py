# SPDX-License-Identifier: Apache-2.0
"""Cuts of a kd tree: which rows of a node lie on its first side."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

EXTENT = 3.33
"""Standard deviations that a splat spans at most, as gs-cull takes it."""

_DEPTH = 128  # of the stack of nodes; a tree of 2^62 leaves is less deep


@njit(cache=True, nogil=True, error_model="numpy")
def halve(axes, rows, best, left, start, stop, leaves):  # type: ignore[no-untyped-def]
    """Cut a node in two, and put the rows of its first side first.

    Args:
        axes: (4, N) float32 finite: means, and the largest log scale. All arrays are written to,
            for the node's rows alone.
        rows: (N,) int64 their numbers; in the node, rows are in the order of keys.
        best, left: (N,) bool, scratch.
        start, stop: the node's rows.
        leaves: of the node, at least 2.

    Returns:
        Where its second side begins, of leaves - leaves // 2 leaves.
    """
    middle = start + (stop - start) * (leaves // 2) // leaves
    is_left = best[start:stop]
    cut(axes[:, start:stop], middle - start, is_left, left[start:stop])
    for axis in range(4):
        _divide(axes[axis, start:stop], is_left)
    _divide(rows[start:stop], is_left)
    return middle


@njit(cache=True, nogil=True, error_model="numpy")
def cut_to_leaves(axes, rows, best, left, offsets, start, stop, first, leaves):  # type: ignore[no-untyped-def]
    """Cut a node until only leaves are left.

    Args:
        axes, rows, best, left, start, stop: as for :func:`halve`.
        offsets: where each leaf of the tree begins; filled for the node's.
        first: the number of the node's first leaf.
        leaves: of the node.
    """
    nodes = np.empty((_DEPTH, 4), np.int64)
    nodes[0, 0], nodes[0, 1], nodes[0, 2], nodes[0, 3] = start, stop, first, leaves
    top = 1
    while top:
        top -= 1
        start, stop, first, leaves = nodes[top]
        if leaves <= 1:
            offsets[first] = start
            continue
        middle, half = halve(axes, rows, best, left, start, stop, leaves), leaves // 2
        nodes[top, 0], nodes[top, 1], nodes[top, 2], nodes[top, 3] = start, middle, first, half
        top += 1
        nodes[top, 0], nodes[top, 1] = middle, stop
        nodes[top, 2], nodes[top, 3] = first + half, leaves - half
        top += 1


@njit(cache=True, nogil=True, error_model="numpy")
def cut(axes, n_left, best, left):  # type: ignore[no-untyped-def]
    """Mark the ``n_left`` rows on the first side of the best cut.

    Args:
        axes: as for :func:`halve`, of the R rows to cut.
        n_left: below R.
        best: (R,) bool, filled.
        left: (R,) bool, scratch.
    """
    n = axes.shape[1]
    least = np.inf
    for axis in range(4):
        values = axes[axis]
        border, at_border = nth(values, n_left)
        for i in range(n):
            left[i] = values[i] < border
            if values[i] == border and at_border > 0:
                left[i] = True
                at_border -= 1
        cost = _cost(axes, left)
        if axis == 0 or cost < least:
            best[:] = left
            least = cost


@njit(cache=True, nogil=True, error_model="numpy")
def nth(values, n):  # type: ignore[no-untyped-def]
    """The n-th smallest of finite float32 values, and how many of its equals come before it.

    Four passes that count bytes of the values, the highest first; numpy's `partition` takes five
    times as long.
    """
    counts = np.empty(256, np.int64)
    known, found = np.uint32(0), np.uint32(0)
    for shift in (24, 16, 8, 0):
        counts[:] = 0
        for value in values:
            bits = _rising(value)
            if bits & known == found:
                counts[(bits >> np.uint32(shift)) & np.uint32(255)] += 1
        byte = 0
        while n >= counts[byte]:
            n -= counts[byte]
            byte += 1
        known |= np.uint32(255 << shift)
        found |= np.uint32(byte << shift)
    sign = np.uint32(1 << 31)
    bits = found ^ sign if found & sign else ~found
    return np.uint32(bits).view(np.float32), n


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _rising(value):  # type: ignore[no-untyped-def]
    """Bits that rise with a float32; those of both zeros are the same."""
    bits = np.float32(value + np.float32(0.0)).view(np.uint32)
    sign = np.uint32(1 << 31)
    return ~bits if bits & sign else bits | sign


@njit(cache=True, nogil=True, error_model="numpy")
def _cost(axes, left):  # type: ignore[no-untyped-def]
    """The sum, over both sides, of rows times the surface of their box."""
    lower = np.full((4, 2), np.inf, np.float32)  # by axis and side
    upper = np.full((4, 2), -np.inf, np.float32)
    for axis in range(4):
        low, high, values = lower[axis], upper[axis], axes[axis]
        for i in range(len(left)):
            side, value = np.int64(left[i]), values[i]
            if value < low[side]:
                low[side] = value
            if value > high[side]:
                high[side] = value
    total, n_left = 0.0, int(np.count_nonzero(left))
    for k in range(2):
        n_rows = n_left if k else len(left) - n_left
        if n_rows:
            reach = 2.0 * EXTENT * math.exp(np.float64(upper[3, k]))
            a = np.float64(upper[0, k]) - np.float64(lower[0, k]) + reach
            b = np.float64(upper[1, k]) - np.float64(lower[1, k]) + reach
            c = np.float64(upper[2, k]) - np.float64(lower[2, k]) + reach
            total += n_rows * (a * b + b * c + c * a)
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _divide(values, is_left):  # type: ignore[no-untyped-def]
    """Put the marked values first; neither side changes its order."""
    others = values[~is_left]
    n_left = 0
    for i in range(len(values)):
        if is_left[i]:
            values[n_left] = values[i]
            n_left += 1
    values[n_left:] = others
