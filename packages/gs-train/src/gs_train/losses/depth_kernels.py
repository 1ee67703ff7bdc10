# SPDX-License-Identifier: Apache-2.0
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The Triton kernel of `depth_triton`: a program has ``BLOCK`` pixels of the rectangle."""

from __future__ import annotations

import triton
import triton.language as tl

_KEPT = tl.constexpr(255)


@triton.jit(do_not_specialize=["height", "width", "row_bytes", "x0", "y0", "x1", "y1"])
def depth_kernel(
    alpha, depth,  # (height, width)
    truth,  # rows of `row_bytes`, pixels of CHANNELS bytes, the last two of the map
    of_alpha, of_depth,  # (height, width)
    sums,  # (programs,) float64
    height, width, row_bytes,
    x0, y0, x1, y1,  # of what counts
    scale, offset, factor,
    CHANNELS: tl.constexpr, IS_METRIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of `gs_train.losses.depth.add_depth`, and this program's part of the sum."""
    program = tl.program_id(0)
    pixel = program * BLOCK + tl.arange(0, BLOCK)
    here, y, x = pixel < height * width, pixel // width, pixel % width
    a = tl.load(alpha + pixel, mask=here, other=0.0)
    d = tl.load(depth + pixel, mask=here, other=0.0)
    ratio = tl.where(d > 0.0, a / tl.where(d > 0.0, d, 1.0), 0.0)
    bytes_at = truth + y.to(tl.int64) * row_bytes + x * CHANNELS
    low = tl.load(bytes_at + CHANNELS - 2, mask=here, other=0).to(tl.float32)
    high = tl.load(bytes_at + CHANNELS - 1, mask=here, other=0).to(tl.float32)
    value = high * 256.0 + low
    counts = here & (x >= x0) & (x < x1) & (y >= y0) & (y < y1)
    if IS_METRIC:
        counts = counts & (value > 0.0)
        given = 1.0 / tl.where(value > 0.0, value * scale, 1.0)
    else:
        given = tl.maximum(value * scale + offset, 0.0)
    if CHANNELS % 2 == 0:
        counts = counts & (tl.load(bytes_at + 3, mask=here, other=0) == _KEPT)
    difference = tl.where(counts, a * ratio - given, 0.0)
    slope = tl.where(difference > 0.0, factor, tl.where(difference < 0.0, -factor, 0.0))
    tl.store(of_alpha + pixel, slope * ratio * 2.0, mask=here)
    tl.store(of_depth + pixel, -(slope * (ratio * ratio)), mask=here)
    tl.store(sums + program, tl.sum(tl.abs(difference).to(tl.float64), 0))
