# SPDX-License-Identifier: Apache-2.0
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The Triton kernels of `activation_triton`: values, and gradients.

A program has ``BLOCK`` rows, one to a thread. What has a number for each basis function and channel
is read and written as a tile of rows by 16 by 4, so that neighbouring lanes touch neighbouring
floats; function 0, which is ``sh0``, and channel 3 are not there. Basis functions as in
`gs_train.renderers.cpu.harmonics`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from gs_train.renderers.harmonics import (
    L0,
    L1,
    L2_XX_YY,
    L2_XY,
    L2_ZZ,
    L3_XXX,
    L3_XXZ,
    L3_XYZ,
    L3_XZZ,
    L3_ZZZ,
)

_L0, _L1 = tl.constexpr(L0), tl.constexpr(L1)
_XY, _ZZ, _XX_YY = tl.constexpr(L2_XY), tl.constexpr(L2_ZZ), tl.constexpr(L2_XX_YY)
_XXX, _XYZ, _XZZ = tl.constexpr(L3_XXX), tl.constexpr(L3_XYZ), tl.constexpr(L3_XZZ)
_ZZZ, _XXZ = tl.constexpr(L3_ZZZ), tl.constexpr(L3_XXZ)


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
def _basis(x, y, z, DEGREE: tl.constexpr):
    """(BLOCK, 16, 1) basis functions, 0 for the first and for those beyond the degree."""
    none = tl.zeros_like(x)
    b1, b2, b3 = none, none, none
    b4, b5, b6, b7, b8 = none, none, none, none, none
    b9, b10, b11, b12, b13, b14, b15 = none, none, none, none, none, none, none
    if DEGREE >= 1:
        b1, b2, b3 = -_L1 * y, _L1 * z, -_L1 * x
    if DEGREE >= 2:
        b4, b5, b7 = _XY * x * y, -_XY * y * z, -_XY * x * z
        b6, b8 = _ZZ * (3.0 * z * z - 1.0), _XX_YY * (x * x - y * y)
    if DEGREE >= 3:
        b9, b15 = -_XXX * y * (3.0 * x * x - y * y), -_XXX * x * (x * x - 3.0 * y * y)
        b10, b14 = _XYZ * x * y * z, _XXZ * z * (x * x - y * y)
        b11, b13 = -_XZZ * y * (5.0 * z * z - 1.0), -_XZZ * x * (5.0 * z * z - 1.0)
        b12 = _ZZZ * z * (5.0 * z * z - 3.0)
    even = tl.join(_pairs(none, b4, b8, b12), _pairs(b2, b6, b10, b14))
    odd = tl.join(_pairs(b1, b5, b9, b13), _pairs(b3, b7, b11, b15))
    return tl.reshape(tl.join(even, odd), (x.shape[0], 16, 1))


@triton.jit
def _terms(rows, here, USED: tl.constexpr, REST: tl.constexpr):
    """Where the tile's numbers are in ``shN``, and which of them are among a row's first."""
    k, channel = tl.arange(0, 16)[None, :, None], tl.arange(0, 4)[None, None, :]
    mask = here[:, None, None] & (k > 0) & (3 * k <= USED) & (channel < 3)
    return rows[:, None, None] * REST + 3 * (k - 1) + channel, mask


@triton.jit(do_not_specialize=["n"])
def value_kernel(
    means, scales, opacities, sh0, sh_n, viewmat,  # (n, 3), (n, 3), (n,), (n, 3), (n, REST), (4, 4)
    out_scales, out_opacities,  # (n, 3), (n,)
    raw, colors,  # (n, 3): before and after clamping
    n,
    DEGREE: tl.constexpr, REST: tl.constexpr, BLOCK: tl.constexpr,
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
    if DEGREE > 0:
        x, y, z, _ = _direction(means, viewmat, rows, here)
        at, there = _terms(rows, here, 3 * (DEGREE * DEGREE + 2 * DEGREE), REST)
        color += tl.sum(tl.load(sh_n + at, mask=there, other=0.0) * _basis(x, y, z, DEGREE), 1)
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
def _along(at, here, k: tl.constexpr, r, g, b):
    """What the loss gains with basis function k of each row."""
    at += 3 * (k - 1)
    total = r * tl.load(at, mask=here, other=0.0)
    total += g * tl.load(at + 1, mask=here, other=0.0)
    return total + b * tl.load(at + 2, mask=here, other=0.0)


@triton.jit
def _slopes(at, here, r, g, b, x, y, z, DEGREE: tl.constexpr):
    """The gradient by the direction, x, y and z taken as independent."""
    s1, s2 = _along(at, here, 1, r, g, b), _along(at, here, 2, r, g, b)
    s3 = _along(at, here, 3, r, g, b)
    by_x, by_y, by_z = -_L1 * s3, -_L1 * s1, _L1 * s2
    if DEGREE >= 2:
        s4, s5 = _along(at, here, 4, r, g, b), _along(at, here, 5, r, g, b)
        s6, s7 = _along(at, here, 6, r, g, b), _along(at, here, 7, r, g, b)
        s8 = 2.0 * _XX_YY * _along(at, here, 8, r, g, b)
        by_x += _XY * (y * s4 - z * s7) + x * s8
        by_y += _XY * (x * s4 - z * s5) - y * s8
        by_z += 6.0 * _ZZ * z * s6 - _XY * (y * s5 + x * s7)
    if DEGREE >= 3:
        s9, s10 = 3.0 * _XXX * _along(at, here, 9, r, g, b), _XYZ * _along(at, here, 10, r, g, b)
        s11, s12 = _XZZ * _along(at, here, 11, r, g, b), _ZZZ * _along(at, here, 12, r, g, b)
        s13, s14 = _XZZ * _along(at, here, 13, r, g, b), _XXZ * _along(at, here, 14, r, g, b)
        s15 = 3.0 * _XXX * _along(at, here, 15, r, g, b)
        difference, five = x * x - y * y, 5.0 * z * z - 1.0
        by_x += y * z * s10 + 2.0 * x * (z * s14 - y * s9) - five * s13 - difference * s15
        by_y += x * z * s10 + 2.0 * y * (x * s15 - z * s14) - five * s11 - difference * s9
        by_z += x * y * s10 - 10.0 * z * (y * s11 + x * s13) + 3.0 * five * s12 + difference * s14
    return by_x, by_y, by_z


@triton.jit(do_not_specialize=["n"])
def gradient_kernel(
    means, sh_n, viewmat, scales, opacities, raw,  # scales and opacities as value_kernel wrote them
    of_means, of_scales, of_opacities, of_colors,  # gradients of what value_kernel wrote; of means
    to_means, to_scales, to_opacities, to_sh0, to_sh_n,  # gradients of what it read
    n,
    DEGREE: tl.constexpr, REST: tl.constexpr, BLOCK: tl.constexpr,
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
    if DEGREE > 0:
        by_x, by_y, by_z = _slopes(sh_n + rows * REST, here, r, g, b, x, y, z, DEGREE)
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
        at, there = _terms(rows, here, REST, REST)
        tl.store(to_sh_n + at, shades * _basis(x, y, z, DEGREE), mask=there)
