# SPDX-License-Identifier: Apache-2.0
"""Kernels that choose which rows wait where not all fit. `belady` launches them.

An interval is two uses p < j of a row without one between; the row may wait through it or be given
up. How many leave, of those that wait for j while microbatch t runs, follows from counts of
intervals alone, since all of a later use go before any of an earlier one. At most one j of each t
loses some of its rows but not all: these events are numbered by their t. Only for them is a row
looked for, the lowest that leaves.

``todo`` tells how many microbatches to walk through: none where everything fits, so that the host
need not know whether it does. Then there are no events.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gs_order.plans.cuda.kernels import _seen

_SIZES = ["n_rows", "n_views", "n_blocks", "n_words", "n_copies", "n_tiles", "capacity", "ahead"]


@triton.jit(do_not_specialize=_SIZES)
def interval_kernel(  # type: ignore[no-untyped-def]
    mask,  # (U, W) int32
    views,  # (B,) int32
    todo,  # (1,) int32
    intervals,  # (copies, B, B) int32, zeros: += intervals [p, j] that may be given up
    together,  # (B,) int32, zeros: += rows that microbatches i .. i + ahead see
    n_rows,
    n_views,
    n_words,
    n_copies,
    ahead,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    valid = rows < n_rows
    n = tl.load(todo)
    # Blocks add to one of several tables, because many rows have the same interval.
    table = intervals + (block % n_copies) * n_views * n_views
    following = tl.zeros((BLOCK,), tl.int32) + n_views + ahead
    for k in range(n):
        i = n - 1 - k
        here = _seen(mask, views, i, rows, valid, n_words) != 0
        far = here & (following < n_views) & (following - i > ahead + 1)
        tl.atomic_add(table + i * n_views + following, 1, mask=far, sem="relaxed")
        following = tl.where(here, i, following)
        soon = (following - i <= ahead).to(tl.int32)
        tl.atomic_add(together + i, tl.sum(soon, 0), sem="relaxed")


@triton.jit(do_not_specialize=_SIZES)
def leave_kernel(  # type: ignore[no-untyped-def]
    intervals,  # (B, B) int32
    together,  # (B,) int32
    todo,
    emptied,  # (B,) int32: all that waits for j from before emptied[j] is given up
    first_event,  # (B,) int32: of j, -1 for none
    next_event,  # (B,) int32: of the same j after event t, -1 for none
    n_leaving,  # (B,) int32: rows that leave at event t
    n_views,
    capacity,
    ahead,
    VIEWS: tl.constexpr,
):
    """One program: the batch step by step, all next uses at once."""
    n = tl.load(todo)
    js = tl.arange(0, VIEWS)
    waiting = tl.zeros((VIEWS,), tl.int32)
    empty = tl.zeros((VIEWS,), tl.int32)
    event_of = tl.full((VIEWS,), -1, tl.int32)  # [t]: which j loses some
    leaving = tl.zeros((VIEWS,), tl.int32)
    for t in range(n):
        idle = tl.where(js > t + ahead, waiting, 0)
        n_idle = tl.sum(idle, 0)
        excess = tl.load(together + t) + n_idle - capacity
        needed_later = n_idle - tl.cumsum(idle, 0)
        leave = tl.minimum(tl.maximum(excess - needed_later, 0), idle)
        empty = tl.where((leave == idle) & (idle > 0), t, empty)
        some = (leave > 0) & (leave < idle)
        event_of = tl.where(js == t, tl.max(tl.where(some, js, -1), 0), event_of)
        leaving = tl.where(js == t, tl.sum(tl.where(some, leave, 0), 0), leaving)
        begun = tl.load(intervals + t * n_views + js, mask=js < n_views, other=0)
        waiting += begun - leave
    first = tl.full((VIEWS,), -1, tl.int32)
    for k in range(n):
        t = n - 1 - k
        mine = js == tl.sum(tl.where(js == t, event_of, 0), 0)
        tl.store(next_event + t, tl.sum(tl.where(mine, first, 0), 0))
        # Whom all of t's rows leave later anyway has no use for its event.
        first = tl.where(mine & (t > empty), t, first)
    inside = js < n_views
    tl.store(emptied + js, empty, mask=inside)
    tl.store(first_event + js, first, mask=inside)
    tl.store(n_leaving + js, leaving, mask=inside)


@triton.jit(do_not_specialize=_SIZES)
def begun_kernel(  # type: ignore[no-untyped-def]
    mask,
    views,
    todo,
    emptied,
    first_event,
    next_event,
    begun,  # (B, blocks) int32: rows that wait at event t and did not at the event before it
    n_rows,
    n_views,
    n_blocks,
    n_words,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    valid = rows < n_rows
    n = tl.load(todo)
    previous = tl.full((BLOCK,), -1, tl.int32)
    for j in range(n):
        here = _seen(mask, views, j, rows, valid, n_words) != 0
        since = tl.load(emptied + j)
        event = tl.load(first_event + j)
        while event >= 0:
            waits = here & (previous >= since) & (previous < event)
            tl.store(begun + event * n_blocks + block, tl.sum(waits.to(tl.int32), 0))
            since = event
            event = tl.load(next_event + event)
        previous = tl.where(here, j, previous)


@triton.jit(do_not_specialize=_SIZES)
def border_kernel(  # type: ignore[no-untyped-def]
    mask,
    views,
    emptied,
    first_event,
    next_event,
    n_leaving,
    waiting,  # (B, blocks) int32: in, as begun_kernel leaves it; out, rows that stay at event t
    kept_below,  # (B, B) int32: of the intervals [p, j] those of rows below it are kept
    n_rows,
    n_views,
    n_blocks,
    n_words,
    n_tiles,
    VIEWS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program goes through the events of its j: the highest rows leave."""
    j = tl.program_id(0)
    ps = tl.arange(0, VIEWS)
    inside = ps < n_views
    column = kept_below + ps * n_views + j
    since = tl.load(emptied + j)
    borders = tl.where(ps < since, 0, n_rows)
    tl.store(column, borders, mask=inside)
    event = tl.load(first_event + j)
    before = event
    while event >= 0:
        n_left = tl.load(n_leaving + event)
        block = 0
        rank = 0
        for k in range(n_tiles):
            at = (n_tiles - 1 - k) * TILE + tl.arange(0, TILE)
            real = at < n_blocks
            here = tl.load(waiting + event * n_blocks + at, mask=real, other=0)
            stayed = real & (before != event)
            here += tl.load(waiting + before * n_blocks + at, mask=stayed, other=0)
            n_here = tl.sum(here, 0)
            wanted = n_left - (n_here - tl.cumsum(here, 0))  # when all blocks above have given
            leave = tl.minimum(tl.maximum(wanted, 0), here)
            tl.store(waiting + event * n_blocks + at, here - leave, mask=real)
            divided = (wanted > 0) & (wanted <= here)
            block += tl.sum(tl.where(divided, at, 0), 0)
            rank += tl.sum(tl.where(divided, wanted, 0), 0)
            n_left -= tl.minimum(n_left, n_here)
        rows = block * BLOCK + tl.arange(0, BLOCK)
        valid = rows < n_rows
        previous = tl.full((BLOCK,), -1, tl.int32)
        for p in range(j):
            previous = tl.where(_seen(mask, views, p, rows, valid, n_words) != 0, p, previous)
        tl.debug_barrier()  # the column was written by other threads
        waits = _seen(mask, views, j, rows, valid, n_words) != 0
        waits = waits & (previous >= since) & (previous < event)
        border = tl.load(kept_below + previous * n_views + j, mask=waits, other=0)
        waits = (waits & (rows < border)).to(tl.int32)
        n_higher = tl.sum(waits, 0) - tl.cumsum(waits, 0)
        lowest = tl.sum(tl.where((waits != 0) & (n_higher == rank - 1), rows, 0), 0)
        tl.debug_barrier()  # all have read the column
        borders = tl.where(ps < event, tl.minimum(borders, lowest), borders)
        tl.store(column, borders, mask=inside)
        before = event
        event = tl.load(next_event + event)


@triton.jit(do_not_specialize=_SIZES)
def recount_kernel(  # type: ignore[no-untyped-def]
    mask,
    views,
    todo,
    kept_below,
    counts,  # (4, B, blocks) int32: loads and stores are counted anew
    n_loads,  # (U,) int32
    n_rows,
    n_views,
    n_blocks,
    n_words,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    valid = rows < n_rows
    plane = n_views * n_blocks
    n = tl.load(todo)
    previous = tl.full((BLOCK,), -1, tl.int32)
    loads = tl.zeros((BLOCK,), tl.int32)
    for i in range(n):
        here = _seen(mask, views, i, rows, valid, n_words) != 0
        known = here & (previous >= 0)
        border = tl.load(kept_below + previous * n_views + i, mask=known, other=0)
        load = (here & (rows >= border)).to(tl.int32)
        tl.store(counts + plane + i * n_blocks + block, tl.sum(load, 0))
        loads += load
        previous = tl.where(here, i, previous)
    if n > 0:
        tl.store(n_loads + rows, loads, mask=valid)
    following = tl.zeros((BLOCK,), tl.int32) + n_views
    for k in range(n):
        i = n - 1 - k
        here = _seen(mask, views, i, rows, valid, n_words) != 0
        again = here & (following < n_views)
        border = tl.load(kept_below + i * n_views + following, mask=again, other=0)
        store = (here & (rows >= border)).to(tl.int32)
        tl.store(counts + 2 * plane + i * n_blocks + block, tl.sum(store, 0))
        following = tl.where(here, i, following)
