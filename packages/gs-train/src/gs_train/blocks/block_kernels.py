# SPDX-License-Identifier: Apache-2.0
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The Triton kernels of blocks in slots: which rows they hold, and what bounds their future.

A program has one block.
"""

from __future__ import annotations

import triton
import triton.language as tl

_INF = tl.constexpr(float("inf"))
_NORMAL = tl.constexpr(2.0**-125)


@triton.jit(do_not_specialize=["n", "block_rows"])
def places_kernel(layout, n, block_rows, places, CHUNK: tl.constexpr):
    """`SlotRows.places`; ``layout`` as there."""
    block = tl.program_id(0)
    first = tl.load(layout + block) * block_rows
    count = tl.load(layout + n + block)
    to = places + tl.load(layout + 2 * n + block)
    for start in range(0, count, CHUNK):
        row = start + tl.arange(0, CHUNK)
        tl.store(to + row, first + row, mask=row < count)


@triton.jit(do_not_specialize=["n", "block_rows"])
def list_kernel(
    layout,  # of `SlotRows`
    key, last_step,  # (C,) int32
    n, block_rows,
    places, ids, keys, last_steps, mask,  # of `ListedRows`
    WORDS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """`SlotRows.listed`."""
    block = tl.program_id(0)
    first = tl.load(layout + block) * block_rows
    count = tl.load(layout + n + block)
    before = tl.load(layout + 2 * n + block)
    for start in range(0, count, CHUNK):
        row = start + tl.arange(0, CHUNK)
        here = row < count
        place, to = first + row, before + row
        tl.store(places + to, place, mask=here)
        tl.store(ids + to, to.to(tl.int32), mask=here)
        tl.store(keys + to, tl.load(key + place, mask=here), mask=here)
        tl.store(last_steps + to, tl.load(last_step + place, mask=here), mask=here)
        for word in tl.static_range(WORDS):
            bits = tl.load(layout + (3 + word) * n + block).to(tl.int32)
            tl.store(mask + to * WORDS + word, tl.zeros((CHUNK,), tl.int32) + bits, mask=here)


@triton.jit(do_not_specialize=["n"])
def count_kernel(marks, layout, n, counts, CHUNK: tl.constexpr):
    """`SlotRows.count`; ``marks`` are bytes."""
    block = tl.program_id(0)
    count = tl.load(layout + n + block)
    own = marks + tl.load(layout + 2 * n + block)
    marked = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, count, CHUNK):
        row = start + tl.arange(0, CHUNK)
        marked += tl.load(own + row, mask=row < count, other=0).to(tl.int32)
    tl.store(counts + block, tl.sum(marked))


@triton.jit
def _reach(w, m, v, since, n_steps, by_step, numbers, step, AT: tl.constexpr):
    """`SleepReach.reach` for ever, of (CHUNK, 4) absolute values in float64."""
    numbers += AT * 9
    largest, root_b2, factor, exponent = (
        tl.load(numbers),
        tl.load(numbers + 1),
        tl.load(numbers + 2),
        tl.load(numbers + 3),
    )
    b1, rest_b1, rest_r, roundings, denormal = (
        tl.load(numbers + 4),
        tl.load(numbers + 5),
        tl.load(numbers + 6),
        tl.load(numbers + 7),
        tl.load(numbers + 8),
    )
    row = by_step + since * 6 + AT * 3
    ceiling = tl.maximum(tl.load(row), tl.load(by_step + step * 6 + AT * 3))[:, None]
    sums, eps = tl.load(row + 1)[:, None], tl.load(row + 2)[:, None]
    farthest = ceiling * largest / eps
    is_normal = v >= _NORMAL
    quotient = m / (tl.where(is_normal, tl.sqrt(tl.where(is_normal, v, 1.0)), 0.0) + eps / root_b2)
    moved = ceiling * sums * quotient
    power = tl.exp(exponent * tl.log(tl.maximum(tl.where(is_normal, v, _NORMAL) / _NORMAL, 1.0)))
    without_v = tl.where(is_normal, tl.minimum(power, b1), 0.0) / rest_b1
    moved += 4.0 * farthest * m * without_v
    moved *= factor
    a_step = 2.0 * farthest / rest_b1 + 2.0 / eps + 2.0
    moved += denormal * (a_step * n_steps + quotient / rest_r + 1.0)
    moved += roundings * (w + moved)
    moved = tl.where(moved != moved, _INF, moved)
    return tl.where((m != 0.0) & (n_steps != 0.0), moved, 0.0)


@triton.jit
def _loaded(table, at, columns, mask):
    return tl.load(table + at[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float64)


@triton.jit(do_not_specialize=["n", "step", "last_of_all", "block_rows"])
def fit_kernel(
    values, exp_avg, exp_avg_sq,  # (C, WIDTH): means in columns 0 to 2, log scales in 3 to 5
    last_step,  # (C,) int32
    layout,  # of `SlotRows`
    by_step, numbers,  # of `ReachTables`
    least,  # (n, 9) float64
    n, step, last_of_all, block_rows,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """What `box_fits.least_by_block` computes, of the rows of a block."""
    block = tl.program_id(0).to(tl.int64)
    first = tl.load(layout + block) * block_rows
    count = tl.load(layout + n + block)
    columns = tl.arange(0, 4)
    inner = columns < 3
    lower = tl.full((4,), _INF, tl.float64)
    upper = tl.full((4,), -_INF, tl.float64)
    scale = tl.full((4,), -_INF, tl.float64)
    far = tl.zeros((4,), tl.float64)
    grown = tl.zeros((4,), tl.float64)
    for start in range(0, count, CHUNK):
        row = start + tl.arange(0, CHUNK)
        here = row < count
        mask = here[:, None] & inner[None, :]
        since = tl.load(last_step + first + row, mask=here, other=0).to(tl.int64)
        n_steps = tl.maximum(last_of_all - since, 0).to(tl.float64)[:, None]
        at = (first + row) * WIDTH
        mean, size = _loaded(values, at, columns, mask), _loaded(values, at + 3, columns, mask)
        m, v = _loaded(exp_avg, at, columns, mask), _loaded(exp_avg_sq, at, columns, mask)
        reach = _reach(
            tl.abs(mean), tl.abs(m), tl.abs(v), since, n_steps, by_step, numbers, step, 0
        )
        moved = tl.where(m > 0.0, -reach, reach)
        m, v = _loaded(exp_avg, at + 3, columns, mask), _loaded(exp_avg_sq, at + 3, columns, mask)
        growth = _reach(
            tl.abs(size), tl.abs(m), tl.abs(v), since, n_steps, by_step, numbers, step, 1
        )
        growth = tl.where(m > 0.0, 0.0, growth)
        # Rows that never show have no part.
        hidden = ~(tl.abs(mean) < _INF) | ~(size < _INF)
        shows = tl.sum((hidden & mask).to(tl.int32), axis=1) == 0
        mask = mask & shows[:, None]
        there = mean + moved
        lower = tl.minimum(lower, tl.min(tl.where(mask, tl.minimum(mean, there), _INF), axis=0))
        upper = tl.maximum(upper, tl.max(tl.where(mask, tl.maximum(mean, there), -_INF), axis=0))
        largest = tl.where(tl.abs(size) < _INF, size + growth, size)
        scale = tl.maximum(scale, tl.max(tl.where(mask, largest, -_INF), axis=0))
        far = tl.maximum(far, tl.max(tl.where(mask, reach, 0.0), axis=0))
        grown = tl.maximum(grown, tl.max(tl.where(mask, growth, 0.0), axis=0))
    to = least + block * 9
    tl.store(to + columns, lower, mask=inner)
    tl.store(to + 3 + columns, -upper, mask=inner)
    tl.store(to + 6, -tl.max(tl.where(inner, scale, -_INF), axis=0))
    tl.store(to + 7, -tl.max(tl.where(inner, far, 0.0), axis=0))
    tl.store(to + 8, -tl.max(tl.where(inner, grown, 0.0), axis=0))
