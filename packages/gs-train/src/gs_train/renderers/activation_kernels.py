# SPDX-License-Identifier: Apache-2.0
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The Triton kernels of `activation_triton`: values, and gradients.

A program has ``BLOCK`` rows. What has a number for each basis function and channel
is read and written as a tile of rows by 16 by 4, so that neighbouring lanes touch neighbouring
floats; function 0, which is ``sh0``, and channel 3 are not there. Basis functions as in
`gs_raster.cpu.harmonics`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from gs_raster.harmonics import (
    L0,
    L1,
    L2_XX_YY,
    L2_XY,
    L2_ZZ,
    L3_X3,
    L3_XXZ,
    L3_XYZ,
    L3_XZZ,
    L3_ZZZ,
)

_L0, _L1 = tl.constexpr(L0), tl.constexpr(L1)
_XY, _ZZ, _XX_YY = tl.constexpr(L2_XY), tl.constexpr(L2_ZZ), tl.constexpr(L2_XX_YY)
_X3, _XYZ, _XZZ = tl.constexpr(L3_X3), tl.constexpr(L3_XYZ), tl.constexpr(L3_XZZ)
_ZZZ, _XXZ = tl.constexpr(L3_ZZZ), tl.constexpr(L3_XXZ)

_SIZES = ["n", "n_used"]
"""Compiled once: not anew for sizes that are 1 or multiples of 16, nor for each degree."""


@triton.jit
def _direction(means, viewmat, rows, here):
    """Unit vector from the camera to each row, and one over the distance."""
    t0, t1, t2 = tl.load(viewmat + 3), tl.load(viewmat + 7), tl.load(viewmat + 11)
    x = tl.load(means + 3 * rows, mask=here, other=1.0)
    y = tl.load(means + 3 * rows + 1, mask=here, other=1.0)
    z = tl.load(means + 3 * rows + 2, mask=here, other=1.0)
    # The camera is at -R^T t.
    x += tl.load(viewmat) * t0 + tl.load(viewmat + 4) * t1 + tl.load(viewmat + 8) * t2
    y += tl.load(viewmat + 1) * t0 + tl.load(viewmat + 5) * t1 + tl.load(viewmat + 9) * t2
    z += tl.load(viewmat + 2) * t0 + tl.load(viewmat + 6) * t1 + tl.load(viewmat + 10) * t2
    squared = x * x + y * y + z * z
    by = tl.where(squared > 0.0, 1.0 / tl.sqrt(squared), 0.0)  # no direction at the camera itself
    return x * by, y * by, z * by, by


@triton.jit
def _pairs(a, b, c, d):
    """(BLOCK, 2, 2) of the four, in the order that makes :func:`_basis` count upwards."""
    return tl.join(tl.join(a, c), tl.join(b, d))


@triton.jit
def _basis(x, y, z):
    """(BLOCK, 16, 1) basis functions, 0 for the first."""
    none, difference, five = tl.zeros_like(x), x * x - y * y, 5.0 * z * z - 1.0
    b1, b2, b3 = -_L1 * y, _L1 * z, -_L1 * x
    b4, b5, b7 = _XY * x * y, -_XY * y * z, -_XY * x * z
    b6, b8 = _ZZ * (3.0 * z * z - 1.0), _XX_YY * difference
    b9, b15 = -_X3 * y * (3.0 * x * x - y * y), -_X3 * x * (x * x - 3.0 * y * y)
    b10, b14 = _XYZ * x * y * z, _XXZ * z * difference
    b11, b13 = -_XZZ * y * five, -_XZZ * x * five
    b12 = _ZZZ * z * (5.0 * z * z - 3.0)
    even = tl.join(_pairs(none, b4, b8, b12), _pairs(b2, b6, b10, b14))
    odd = tl.join(_pairs(b1, b5, b9, b13), _pairs(b3, b7, b11, b15))
    return tl.reshape(tl.join(even, odd), (x.shape[0], 16, 1))


@triton.jit
def _terms(rows, here, n_used, REST: tl.constexpr):
    """Where the tile's numbers are in ``shN``, which are there, and whose functions are in use."""
    k, channel = tl.arange(0, 16)[None, :, None], tl.arange(0, 4)[None, None, :]
    there = here[:, None, None] & (k > 0) & (3 * k <= REST) & (channel < 3)
    return rows[:, None, None] * REST + 3 * (k - 1) + channel, there, k <= n_used


@triton.jit(do_not_specialize=_SIZES)
def value_kernel(
    means, scales, opacities, sh0, sh_n, viewmat,  # (n, 3), (n, 3), (n,), (n, 3), (n, REST), (4, 4)
    out_scales, out_opacities,  # (n, 3), (n,)
    raw, colors,  # (n, 3): before and after clamping
    n, n_used,
    REST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = rows < n
    opacity = tl.load(opacities + rows, mask=here, other=0.0)
    tl.store(out_opacities + rows, tl.div_rn(1.0, 1.0 + libdevice.exp(-opacity)), mask=here)
    channel = tl.arange(0, 4)[None, :]
    of_three, mask = 3 * rows[:, None] + channel, here[:, None] & (channel < 3)
    scale = tl.load(scales + of_three, mask=mask, other=0.0)
    tl.store(out_scales + of_three, libdevice.exp(scale), mask=mask)
    color = _L0 * tl.load(sh0 + of_three, mask=mask, other=0.0)
    if REST > 0:
        x, y, z, _ = _direction(means, viewmat, rows, here)
        at, there, used = _terms(rows, here, n_used, REST)
        color += tl.sum(tl.load(sh_n + at, mask=there & used, other=0.0) * _basis(x, y, z), 1)
    # Not one operation with the product: black points begin where this is 0 to the bit.
    color = libdevice.add_rn(color, 0.5)
    tl.store(raw + of_three, color, mask=mask)
    tl.store(colors + of_three, tl.where(color < 0.0, 0.0, color), mask=mask)


@triton.jit
def _shade(raw, of_colors, rows, here, c: tl.constexpr):
    """The gradient of a channel. At 0 itself, where black points begin, it passes."""
    lit = tl.load(raw + 3 * rows + c, mask=here, other=-1.0) >= 0.0
    return tl.where(lit, tl.load(of_colors + 3 * rows + c, mask=here, other=0.0), 0.0)


@triton.jit
def _along(at, here, n_used, k: tl.constexpr, r, g, b):
    """What the loss gains with basis function k of each row; 0 where it is not in use."""
    at += 3 * (k - 1)
    here = here & (k <= n_used)
    total = r * tl.load(at, mask=here, other=0.0)
    total += g * tl.load(at + 1, mask=here, other=0.0)
    return total + b * tl.load(at + 2, mask=here, other=0.0)


@triton.jit
def _slopes(at, here, n_used, r, g, b, x, y, z):
    """The gradient by the direction, x, y and z taken as independent."""
    s1 = _along(at, here, n_used, 1, r, g, b)
    s2 = _along(at, here, n_used, 2, r, g, b)
    s3 = _along(at, here, n_used, 3, r, g, b)
    s4 = _along(at, here, n_used, 4, r, g, b)
    s5 = _along(at, here, n_used, 5, r, g, b)
    s6 = _along(at, here, n_used, 6, r, g, b)
    s7 = _along(at, here, n_used, 7, r, g, b)
    s8 = 2.0 * _XX_YY * _along(at, here, n_used, 8, r, g, b)
    s9 = 3.0 * _X3 * _along(at, here, n_used, 9, r, g, b)
    s10 = _XYZ * _along(at, here, n_used, 10, r, g, b)
    s11 = _XZZ * _along(at, here, n_used, 11, r, g, b)
    s12 = _ZZZ * _along(at, here, n_used, 12, r, g, b)
    s13 = _XZZ * _along(at, here, n_used, 13, r, g, b)
    s14 = _XXZ * _along(at, here, n_used, 14, r, g, b)
    s15 = 3.0 * _X3 * _along(at, here, n_used, 15, r, g, b)
    difference, five = x * x - y * y, 5.0 * z * z - 1.0
    by_x = -_L1 * s3 + _XY * (y * s4 - z * s7) + x * s8
    by_y = -_L1 * s1 + _XY * (x * s4 - z * s5) - y * s8
    by_z = _L1 * s2 + 6.0 * _ZZ * z * s6 - _XY * (y * s5 + x * s7)
    by_x += y * z * s10 + 2.0 * x * (z * s14 - y * s9) - five * s13 - difference * s15
    by_y += x * z * s10 + 2.0 * y * (x * s15 - z * s14) - five * s11 - difference * s9
    by_z += x * y * s10 - 10.0 * z * (y * s11 + x * s13) + 3.0 * five * s12 + difference * s14
    return by_x, by_y, by_z


@triton.jit(do_not_specialize=_SIZES)
def gradient_kernel(
    means, sh_n, viewmat, scales, opacities, raw,  # scales and opacities as value_kernel wrote them
    of_means, of_scales, of_opacities, of_colors,  # gradients of what value_kernel wrote; of means
    to_means, to_scales, to_opacities, to_sh0, to_sh_n,  # gradients of what it read
    n, n_used,
    REST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = rows < n
    opacity = tl.load(opacities + rows, mask=here, other=0.0)
    upstream = tl.load(of_opacities + rows, mask=here, other=0.0)
    tl.store(to_opacities + rows, upstream * (1.0 - opacity) * opacity, mask=here)
    x, y, z, by = _direction(means, viewmat, rows, here)
    r, g = _shade(raw, of_colors, rows, here, 0), _shade(raw, of_colors, rows, here, 1)
    b = _shade(raw, of_colors, rows, here, 2)
    by_x, by_y, by_z = tl.zeros_like(x), tl.zeros_like(x), tl.zeros_like(x)
    if REST > 0:
        by_x, by_y, by_z = _slopes(sh_n + rows * REST, here, n_used, r, g, b, x, y, z)
    # Nothing depends on the direction's length.
    radial = by_x * x + by_y * y + by_z * z
    for c in tl.static_range(3):
        at = 3 * rows + c
        scale = tl.load(scales + at, mask=here, other=0.0)
        upstream = tl.load(of_scales + at, mask=here, other=0.0)
        tl.store(to_scales + at, upstream * scale, mask=here)
        tl.store(to_sh0 + at, _L0 * (r if c == 0 else (g if c == 1 else b)), mask=here)
        slope = by_x if c == 0 else (by_y if c == 1 else by_z)
        unit = x if c == 0 else (y if c == 1 else z)
        total = tl.load(of_means + at, mask=here, other=0.0)
        tl.store(to_means + at, total + (slope - radial * unit) * by, mask=here)
    if REST > 0:
        shades = tl.join(tl.join(r, b), tl.join(g, tl.zeros_like(r)))
        shades = tl.reshape(shades, (BLOCK, 1, 4))
        at, there, used = _terms(rows, here, n_used, REST)
        tl.store(to_sh_n + at, tl.where(used, shades * _basis(x, y, z), 0.0), mask=there)
