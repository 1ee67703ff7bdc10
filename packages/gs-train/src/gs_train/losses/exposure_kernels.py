# SPDX-License-Identifier: Apache-2.0
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The Triton kernels of `exposure_triton`: a program has ``BLOCK`` pixels.

Which pixels a program has changes no pixel's bits; sums over pixels have a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n"])
def exposed_kernel(
    image, out,  # (n, 3)
    exposure,  # (3, 4)
    n,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Each pixel's colour c as ``A c + b``."""
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here, at = pixel < n, pixel.to(tl.int64) * 3
    c0 = tl.load(image + at, mask=here)
    c1 = tl.load(image + at + 1, mask=here)
    c2 = tl.load(image + at + 2, mask=here)
    for row in tl.static_range(3):
        a = exposure + 4 * row
        mixed = c0 * tl.load(a) + c1 * tl.load(a + 1) + c2 * tl.load(a + 2) + tl.load(a + 3)
        tl.store(out + at + row, mixed, mask=here)


@triton.jit(do_not_specialize=["n"])
def gradients_kernel(
    gradient, image, by_image,  # (n, 3)
    exposure,  # (3, 4)
    sums,  # (programs, 12) float64
    n,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient by the image, and this program's part of that by the exposure."""
    program = tl.program_id(0)
    pixel = program * BLOCK + tl.arange(0, BLOCK)
    here, at = pixel < n, pixel.to(tl.int64) * 3
    to = sums + program.to(tl.int64) * 12
    for column in tl.static_range(3):
        color = tl.load(image + at + column, mask=here, other=0.0)
        by_color = tl.zeros((BLOCK,), tl.float32)
        for row in tl.static_range(3):
            upstream = tl.load(gradient + at + row, mask=here, other=0.0)
            by_color += upstream * tl.load(exposure + 4 * row + column)
            tl.store(to + 4 * row + column, tl.sum((upstream * color).to(tl.float64), 0))
            if column == 0:
                tl.store(to + 4 * row + 3, tl.sum(upstream.to(tl.float64), 0))
        tl.store(by_image + at + column, by_color, mask=here)
