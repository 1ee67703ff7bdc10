# SPDX-License-Identifier: Apache-2.0
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The Triton kernels of rows: all six attributes are taken, or added to, in one launch.

A program has ``BLOCK`` rows and takes each attribute as a tile of them by the next power of two of
its width, so that neighbouring lanes touch neighbouring floats.
"""

from __future__ import annotations

import triton
import triton.language as tl

_SIZES = ["n", "sh0_stride", "sh_n_stride"]
"""Compiled once, not anew for sizes that are 1 or multiples of 16."""


@triton.jit
def _tile(start, at, stride, columns):
    """Addresses of some columns of rows ``at`` that are ``stride`` floats apart."""
    return start + at[:, None] * stride + columns[None, :]


@triton.jit
def _copy(values, at, stride, out, rows, here, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    columns = tl.arange(0, WIDE)
    mask = here[:, None] & (columns < WIDTH)[None, :]
    tile = tl.load(_tile(values, at, stride, columns), mask=mask)
    tl.store(_tile(out, rows, WIDTH, columns), tile, mask=mask)


@triton.jit
def _add(totals, at, stride, part, rows, here, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    columns = tl.arange(0, WIDE)
    mask = here[:, None] & (columns < WIDTH)[None, :]
    tile = tl.load(_tile(part, rows, WIDTH, columns), mask=mask)
    to = _tile(totals, at, stride, columns)
    tl.store(to, tl.load(to, mask=mask) + tile, mask=mask)


@triton.jit
def _add_to(
    carried, noted, begun, totals, at, stride, part, rows, here,
    WIDTH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """What was begun (`gs_train.rows.copies.InitialSums.at`), and the part, become the total."""
    columns = tl.arange(0, WIDE)
    mask = here[:, None] & (columns < WIDTH)[None, :]
    tile = tl.load(_tile(part, rows, WIDTH, columns), mask=mask)
    is_carried, is_noted = (begun >= 0)[:, None], (begun < -1)[:, None]
    tile += tl.load(_tile(carried, begun, stride, columns), mask=mask & is_carried, other=0.0)
    tile += tl.load(_tile(noted, -2 - begun, stride, columns), mask=mask & is_noted, other=0.0)
    tl.store(_tile(totals, at, stride, columns), tile, mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def take_kernel(
    means, scales, quats, opacities, sh0, sh_n,  # (N, ...) of ids, the last two (C, ...) of slots
    ids, slots,  # (n,)
    out_means, out_scales, out_quats, out_opacities, out_sh0, out_sh_n,  # (n, ...) contiguous
    n, sh0_stride, sh_n_stride,
    REST: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = rows < n
    at = tl.load(ids + rows, mask=here, other=0).to(tl.int64)
    slot = tl.load(slots + rows, mask=here, other=0).to(tl.int64)
    _copy(means, at, 3, out_means, rows, here, 3, 4)
    _copy(scales, at, 3, out_scales, rows, here, 3, 4)
    _copy(quats, at, 4, out_quats, rows, here, 4, 4)
    tl.store(out_opacities + rows, tl.load(opacities + at, mask=here), mask=here)
    _copy(sh0, slot, sh0_stride, out_sh0, rows, here, 3, 4)
    if REST > 0:
        _copy(sh_n, slot, sh_n_stride, out_sh_n, rows, here, REST, WIDE)


@triton.jit(do_not_specialize=_SIZES)
def add_kernel(
    means, scales, quats, opacities, sh0, sh_n,  # sums, as take_kernel's values
    ids, slots,  # (n,); any pointers where HAS_IDS or HAS_SLOTS is false: row r is r
    of_means, of_scales, of_quats, of_opacities, of_sh0, of_sh_n,  # (n, ...) contiguous
    begun, carried_sh0, carried_sh_n, noted_sh0, noted_sh_n,  # any pointers where not HAS_BEGUN
    n, sh0_stride, sh_n_stride,
    HAS_IDS: tl.constexpr, HAS_SLOTS: tl.constexpr, HAS_BEGUN: tl.constexpr,
    REST: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = rows < n
    at, slot = rows, rows
    if HAS_IDS:
        at = tl.load(ids + rows, mask=here, other=0).to(tl.int64)
    if HAS_SLOTS:
        slot = tl.load(slots + rows, mask=here, other=0).to(tl.int64)
    _add(means, at, 3, of_means, rows, here, 3, 4)
    _add(scales, at, 3, of_scales, rows, here, 3, 4)
    _add(quats, at, 4, of_quats, rows, here, 4, 4)
    part = tl.load(of_opacities + rows, mask=here)
    tl.store(opacities + at, tl.load(opacities + at, mask=here) + part, mask=here)
    if HAS_BEGUN:
        start = tl.load(begun + rows, mask=here, other=-1).to(tl.int64)
        _add_to(carried_sh0, noted_sh0, start, sh0, slot, sh0_stride, of_sh0, rows, here, 3, 4)
        if REST > 0:
            _add_to(
                carried_sh_n, noted_sh_n, start, sh_n, slot, sh_n_stride, of_sh_n, rows, here,
                REST, WIDE,
            )  # fmt: skip
    else:
        _add(sh0, slot, sh0_stride, of_sh0, rows, here, 3, 4)
        if REST > 0:
            _add(sh_n, slot, sh_n_stride, of_sh_n, rows, here, REST, WIDE)
