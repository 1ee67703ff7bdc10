# SPDX-License-Identifier: Apache-2.0
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The Triton kernel of `exposures_triton`: one program, whose sums thus have one order."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def update_kernel(
    values, mean, square,  # (n_views, 12)
    numbers,  # (2 + n_given,) int32: n_views, n_given, and rows, all different
    gradients,  # (n_given, 12)
    pull, first, second, correction, eps, rate,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A step of Adam, and the mean over the views is no correction again."""
    n_views, n_given, rows = tl.load(numbers), tl.load(numbers + 1), numbers + 2
    column = tl.arange(0, 16)[None, :]
    inner = column < 12
    identity = ((column == 0) | (column == 5) | (column == 10)).to(tl.float32)
    total = tl.zeros((1, 16), tl.float64)
    for start in range(0, n_views, BLOCK):
        row = start + tl.arange(0, BLOCK)[:, None]
        here, at = (row < n_views) & inner, row * 12 + column
        value = tl.load(values + at, mask=here, other=0.0)
        gradient = tl.zeros((BLOCK, 16), tl.float32)
        for k in range(n_given):
            given = tl.load(gradients + k * 12 + column, mask=inner, other=0.0)
            is_its_row = row == tl.load(rows + k)
            gradient += tl.where(is_its_row, given + (value - identity) * pull, 0.0)
        m = tl.load(mean + at, mask=here, other=0.0) * first + gradient * (1.0 - first)
        v = tl.load(square + at, mask=here, other=0.0) * second
        v += gradient * gradient * (1.0 - second)
        value -= m / (tl.sqrt(v * correction) + eps) * rate
        tl.store(mean + at, m, mask=here)
        tl.store(square + at, v, mask=here)
        tl.store(values + at, value, mask=here)
        total += tl.sum(tl.where(here, value, 0.0).to(tl.float64), 0)[None, :]
    excess = (total / n_views - identity).to(tl.float32)
    tl.debug_barrier()  # a value may have been stored by another thread than the one that loads it
    for start in range(0, n_views, BLOCK):
        row = start + tl.arange(0, BLOCK)[:, None]
        here, at = (row < n_views) & inner, row * 12 + column
        value = tl.load(values + at, mask=here, other=0.0)
        tl.store(values + at, value - excess, mask=here)
