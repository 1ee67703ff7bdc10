# SPDX-License-Identifier: Apache-2.0
"""A cache of fixed capacity over a known sequence of views: reads, evictions and hits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from gs_order.arrays import Array, to_numpy
from gs_order.checks import integer, sequence, whole_number, word
from gs_order.ragged import Ragged, offsets_of

POLICIES = ("belady", "lru")


@dataclass(frozen=True)
class CacheStep:
    """One step: sorted ids (of rows, or of blocks).

    Attributes:
        read: come into the cache. hit: needed and there already. evict: leave before the reads.
    """

    read: np.ndarray[Any, Any]
    hit: np.ndarray[Any, Any]
    evict: np.ndarray[Any, Any]


class CachePlan:
    """The reads, hits and evictions of a cache that starts empty, over a sequence of needs.

    At each step the cache holds all needs of the step together, and evicts only to make room:

        ``"belady"``: entries needed again last or never, the least reads possible for a known
            sequence (Belady, 1966)
        ``"lru"``: entries needed longest ago

    Among equal entries the highest ids leave first.

    Args:
        sets: for each step the sorted, unique ids of the needed rows; numpy arrays, or tensors (a
            tensor is copied to the host).
        capacity: rows, or blocks, that the cache holds.
        policy: ``"belady"`` or ``"lru"``.
        block_size: 1 to cache rows; otherwise id // block_size is cached.

    Attributes:
        read, hit, evict: `Ragged` lists of ids, a list a step, on the host.

    Raises:
        ValueError: no step, ids that are negative or not sorted and unique, a capacity below the
            largest set, an unknown policy, a block size below 1.
        TypeError: ids that are no integers.

    Cost: a sort of all ids, and one pass over the distinct ids for each step that evicts.

    >>> plan = CachePlan([[0, 1], [2], [0], [3], [1]], capacity=2)
    >>> plan.n_read.tolist(), plan[1].evict.tolist(), plan.hit_rate
    ([2, 1, 0, 1, 1], [1], 0.16666666666666666)
    """

    def __init__(
        self, sets: Sequence[Array], capacity: int, *, policy: str = "belady", block_size: int = 1
    ) -> None:
        word("policy", policy, POLICIES)
        block_size = whole_number("block_size", block_size, least=1)
        capacity = whole_number("capacity", capacity)
        if len(sequence("sets", sets)) == 0:
            raise ValueError("sets must hold at least one step, got none")
        steps = [_checked(ids, step, block_size) for step, ids in enumerate(sets)]
        largest = max(len(ids) for ids in steps)
        if capacity < largest:
            raise ValueError(
                f"capacity must be at least {largest}, what one step needs, got {capacity}"
            )
        self.capacity = capacity
        self.policy = policy
        self.block_size = block_size
        offsets = offsets_of(np.array([len(ids) for ids in steps]))
        ids, items = np.unique(np.concatenate(steps), return_inverse=True)
        hits, evicted, evict_offsets = _run(
            items.astype(np.int64), offsets, len(ids), capacity, policy == "belady"
        )
        step_of = np.repeat(np.arange(len(steps)), np.diff(offsets))

        def chosen(which: np.ndarray[Any, Any]) -> Ragged:
            counts = np.bincount(step_of[which], minlength=len(steps))
            return Ragged(ids[items[which]], offsets_of(counts))

        self.read = chosen(~hits)
        self.hit = chosen(hits)
        self.evict = Ragged(ids[evicted], evict_offsets)

    def __len__(self) -> int:
        return len(self.read)

    def __getitem__(self, step: int) -> CacheStep:
        step = integer("step", step)
        if not 0 <= step < len(self):
            raise IndexError(f"step must be in [0, {len(self)}), got {step}")
        return CacheStep(self.read[step], self.hit[step], self.evict[step])

    def __repr__(self) -> str:
        return (
            f"CachePlan({len(self)} steps, capacity={self.capacity}, policy={self.policy!r}, "
            f"{self.n_read.sum()} read, hit_rate={self.hit_rate:.3f})"
        )

    @property
    def n_read(self) -> np.ndarray[Any, Any]:
        """(T,) int64 reads of each step."""
        return self.read.counts

    @property
    def n_hit(self) -> np.ndarray[Any, Any]:
        """(T,) int64 hits of each step."""
        return self.hit.counts

    @property
    def n_evicted(self) -> np.ndarray[Any, Any]:
        """(T,) int64 evictions of each step."""
        return self.evict.counts

    @property
    def hit_rate(self) -> float:
        """Hits as a share of everything needed; 0.0 when nothing is."""
        needed = len(self.read.values) + len(self.hit.values)
        return len(self.hit.values) / needed if needed else 0.0


def _checked(ids: Array, step: int, block_size: int) -> np.ndarray[Any, Any]:
    rows = to_numpy(ids, f"sets[{step}]")
    if rows.size == 0:
        return np.zeros(0, np.int64)
    if not np.issubdtype(rows.dtype, np.integer):
        raise TypeError(f"sets[{step}] must be of integers, got {rows.dtype}")
    if rows.ndim == 1 and rows[-1] > np.iinfo(np.int64).max:
        raise ValueError(f"sets[{step}] must be of ids below 2^63, got {rows[-1]}")
    if rows.ndim != 1 or rows[0] < 0 or (rows[1:] <= rows[:-1]).any():
        raise ValueError(f"sets[{step}] must be sorted, unique ids >= 0, got others")
    if block_size == 1:
        return rows.astype(np.int64)
    blocks = rows.astype(np.int64) // block_size
    return blocks[np.concatenate([[True], blocks[1:] != blocks[:-1]])]


@njit(cache=True, nogil=True)
def _run(items, offsets, n_items, capacity, belady):  # type: ignore[no-untyped-def]
    """Hits among the needs, and evicted items with the offsets of each step."""
    n_steps = len(offsets) - 1
    next_step = np.empty(len(items), np.int64)  # when the item of this place is needed again
    upcoming = np.full(n_items, n_steps)
    for t in range(n_steps - 1, -1, -1):
        for k in range(offsets[t], offsets[t + 1]):
            next_step[k] = upcoming[items[k]]
            upcoming[items[k]] = t
    hits = np.zeros(len(items), np.bool_)
    evicted = np.empty(len(items), np.int64)
    evict_offsets = np.zeros(n_steps + 1, np.int64)
    absent, needed_now = -1, -2
    # Of each item in the cache: the higher, the sooner it leaves. Never above n_steps.
    rank = np.full(n_items, absent)
    n_of_rank = np.zeros(n_steps + 1, np.int64)
    n_cached = 0
    n_evicted = 0
    for t in range(n_steps):
        n_reads = 0
        for k in range(offsets[t], offsets[t + 1]):
            item = items[k]
            if rank[item] == absent:
                n_reads += 1
            else:
                hits[k] = True
                n_of_rank[rank[item]] -= 1
            rank[item] = needed_now
        excess = n_cached + n_reads - capacity
        if excess > 0:
            threshold = n_steps
            above = 0  # items of a higher rank than the threshold
            while above + n_of_rank[threshold] < excess:
                above += n_of_rank[threshold]
                threshold -= 1
            spared = above + n_of_rank[threshold] - excess  # of the threshold's, lowest first
            for item in range(n_items):
                if rank[item] < threshold:
                    continue
                if rank[item] == threshold and spared > 0:
                    spared -= 1
                    continue
                n_of_rank[rank[item]] -= 1
                rank[item] = absent
                evicted[n_evicted] = item
                n_evicted += 1
            n_cached -= excess
        n_cached += n_reads
        for k in range(offsets[t], offsets[t + 1]):
            rank[items[k]] = next_step[k] if belady else n_steps - t
            n_of_rank[rank[items[k]]] += 1
        evict_offsets[t + 1] = n_evicted
    return hits, evicted[:n_evicted].copy(), evict_offsets
