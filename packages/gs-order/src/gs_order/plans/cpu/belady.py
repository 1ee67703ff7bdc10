# SPDX-License-Identifier: Apache-2.0
"""Which rows do not wait on the device where not all fit: those needed last.

A row between two uses either waits on the device or is stored after the first use p and loaded for
the second j. Giving up the one needed furthest ahead whenever too many wait keeps the most rows
waiting in total: Belady's rule, for intervals that are all known. Among rows needed at the same
microbatch the highest go first. So all that is given up while microbatch t runs are the intervals
that lie around t and come after a point (j, row); whether one is kept follows from its own (p, j)
and row alone, and the points follow from counts of intervals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from gs_order.bits import for_each_range, lowest_bit, popcount
from gs_order.plans.cpu.bits import Sets, count_chunk, loaded, stored
from gs_order.plans.rules import CHOSEN, LAST_USE

Bits = np.ndarray[Any, Any]

_COUNT_BYTES = 1 << 25


def sets_within(sets: Sets, capacity: int, ahead: int, together: Bits) -> Sets:
    """Sets when at most ``capacity`` rows are on the device.

    Args:
        sets: with the rule ``LAST_USE``.
        together: (B,) int64 rows that microbatches i .. i + ahead see together; none above
            ``capacity``.
    """
    n_chunks, n_views = sets.visible.shape[:2]
    # Counts are kept for as many groups of chunks as fit; a row is looked for within one group.
    per_group = max(1, -(-n_chunks * n_views * n_views * 4 // _COUNT_BYTES))
    n_groups = -(-n_chunks // per_group)
    gaps = np.zeros((n_groups, n_views, n_views), np.int32)
    load, store, final = (np.empty_like(sets.visible) for _ in range(3))

    def find(first: int, last: int) -> None:
        for group in range(first, last):
            chunks = (group * per_group, min((group + 1) * per_group, n_chunks))
            _find_gaps(sets.visible, *chunks, load, store, final, gaps[group])

    for_each_range(find, n_groups)
    kept_below = _give_up(sets.visible, gaps, per_group, together, capacity, ahead)
    counts = np.empty_like(sets.counts)

    def settle(first: int, last: int) -> None:
        _settle(sets.visible, kept_below, first, last, load, store, final, counts)

    for_each_range(settle, n_chunks)
    return Sets(sets.visible, CHOSEN, load, store, final, counts)


@njit(cache=True, nogil=True)
def _find_gaps(visible, first, last, load, store, final, gaps):  # type: ignore[no-untyped-def]
    """What rows that stay to their last use load and store; ``gaps[p, j]`` += intervals."""
    n, n_words = visible.shape[1:]
    around = np.empty(n_words, np.uint64)
    for c in range(first, last):
        around[:] = np.uint64(0)
        for i in range(n):
            loaded(visible[c], LAST_USE, load[c], i, around, load[c, i])
        around[:] = np.uint64(0)
        for i in range(n - 1, -1, -1):
            stored(visible[c], LAST_USE, store[c], final[c], i, around, store[c, i], final[c, i])
        for p in range(n - 2):
            for w in range(n_words):
                left = visible[c, p, w] & ~visible[c, p + 1, w] & ~final[c, p, w]
                j = p + 2
                while left != np.uint64(0):
                    used = left & visible[c, j, w]
                    gaps[p, j] += np.int32(popcount(used))
                    left ^= used
                    j += 1


@njit(cache=True, nogil=True)
def _give_up(visible, gaps, per_group, together, capacity, ahead):  # type: ignore[no-untyped-def]
    """(B, B) int64: of the intervals between uses p and j those of rows below [p, j] are kept."""
    n_groups, n = gaps.shape[:2]
    n_rows = 64 * visible.shape[2] * visible.shape[0]
    kept_below = np.full((n, n), n_rows, np.int64)
    waiting = np.zeros((n_groups, n), np.int64)  # [g, j]: rows on the device, next used by j
    for t in range(n):
        excess = together[t] + waiting[:, t + ahead + 1 :].sum() - capacity
        for j in range(n - 1, t + ahead, -1):
            if excess <= 0:
                break
            n_waiting = waiting[:, j].sum()
            if n_waiting == 0:
                continue
            border = 0
            if n_waiting <= excess:
                waiting[:, j] = 0
                excess -= n_waiting
            else:
                group = n_groups - 1
                while waiting[group, j] < excess:
                    excess -= waiting[group, j]
                    waiting[group, j] = 0
                    group -= 1
                waiting[group, j] -= excess
                chunks = (group * per_group, min((group + 1) * per_group, len(visible)))
                border = _border(visible, chunks, t, j, kept_below, excess)
                excess = 0
            for p in range(t):
                kept_below[p, j] = min(kept_below[p, j], border)
        for j in range(t + ahead + 2, n):
            for group in range(n_groups):
                waiting[group, j] += gaps[group, t, j]
    return kept_below


@njit(cache=True, nogil=True)
def _border(visible, chunks, t, j, kept_below, n_leaving):  # type: ignore[no-untyped-def]
    """The lowest of the ``n_leaving`` highest rows that wait for j while t runs, in some chunks."""
    n_words = visible.shape[2]
    for c in range(chunks[1] - 1, chunks[0] - 1, -1):
        for w in range(n_words - 1, -1, -1):
            left = visible[c, j, w]
            for p in range(t, j):
                left &= ~visible[c, p, w]
            found = np.uint64(0)
            p = t - 1
            while left != np.uint64(0) and p >= 0:
                used = left & visible[c, p, w]
                found |= used & ~_from_row(kept_below[p, j], 64 * (n_words * c + w))
                left ^= used
                p -= 1
            n_here = np.int64(popcount(found))
            if n_here >= n_leaving:
                for _ in range(n_here - n_leaving):
                    found &= found - np.uint64(1)  # the lowest stays
                return 64 * (n_words * c + w) + np.int64(lowest_bit(found))
            n_leaving -= n_here
    return 0


@njit(cache=True, nogil=True)
def _from_row(border, first_row):  # type: ignore[no-untyped-def]
    """The bits of a word for rows that are not below ``border``."""
    all_rows = ~np.uint64(0)
    if border <= first_row:
        return all_rows
    if border >= first_row + 64:
        return np.uint64(0)
    return all_rows << np.uint64(border - first_row)


@njit(cache=True, nogil=True)
def _settle(visible, kept_below, first, last, load, store, final, counts):  # type: ignore[no-untyped-def]
    """Store and load again what is not kept, and count."""
    n, n_words = visible.shape[1:]
    for c in range(first, last):
        for p in range(n - 2):
            for w in range(n_words):
                left = visible[c, p, w] & ~visible[c, p + 1, w] & ~final[c, p, w]
                j = p + 2
                while left != np.uint64(0):
                    used = left & visible[c, j, w]
                    if used != np.uint64(0):
                        gone = used & _from_row(kept_below[p, j], 64 * (n_words * c + w))
                        load[c, j, w] |= gone
                        store[c, p, w] |= gone
                        left ^= used
                    j += 1
        count_chunk(visible[c], CHOSEN, load[c], store[c], final[c], counts[c])
