# SPDX-License-Identifier: Apache-2.0
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The Triton kernels of the photometric loss: its value, and its gradient.

Pixels are read as rows of ``n = W * C`` numbers, in which a window's neighbour across is ``C``
numbers away, so all channels are one problem and every load is contiguous. A program takes
``BLOCK`` of these columns and walks down ``rows`` rows. It blurs each row by shifted loads, which
the cache serves, and adds it to the sums of the ten windows that are open there, which stay in
registers. So pixels come from memory about once, and nothing is stored between the two directions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gs_train.losses.ssim import C1, C2, WINDOW, window_weights

_C1, _C2 = tl.constexpr(C1), tl.constexpr(C2)
_W0, _W1, _W2, _W3, _W4, _W5 = (tl.constexpr(w) for w in window_weights()[: WINDOW // 2 + 1])
"""The window is symmetric: weight k is also weight 10 - k."""

_SIZES = ["height", "n", "plane", "core_x0", "core_y0", "core_x1", "core_y1", "rows"]
"""Arguments that are not specialized, for crops of many sizes to share one compilation."""


@triton.jit
def _ten_zeros(BLOCK: tl.constexpr):
    zero = tl.zeros((BLOCK,), tl.float32)
    return zero, zero, zero, zero, zero, zero, zero, zero, zero, zero


@triton.jit
def _push(row, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10):
    """The window that ``row`` completes, and the ten that stay open; sk has seen k rows.

    From the last to the first, so that each sum can take the register of the one before it.
    """
    done = s10 + _W0 * row
    s10 = s9 + _W1 * row
    s9 = s8 + _W2 * row
    s8 = s7 + _W3 * row
    s7 = s6 + _W4 * row
    s6 = s5 + _W5 * row
    s5 = s4 + _W4 * row
    s4 = s3 + _W3 * row
    s3 = s2 + _W2 * row
    s2 = s1 + _W1 * row
    s1 = _W0 * row
    return done, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10


@triton.jit
def _add_pair(w, x0, x1, y0, y1, mu_x, mu_y, squares, products):
    """Adds two columns that weigh the same to the windowed x, y, x^2 + y^2 and x y of a row."""
    return (
        mu_x + w * (x0 + x1),
        mu_y + w * (y0 + y1),
        squares + w * (x0 * x0 + x1 * x1 + y0 * y0 + y1 * y1),
        products + w * (x0 * y0 + x1 * y1),
    )


@triton.jit
def _row_moments(x0, y0, x_at, y_at, scale, C: tl.constexpr):
    """The four windowed sums across, of which the first column has been read already."""
    x10, y10 = tl.load(x_at + 10 * C), tl.load(y_at + 10 * C).to(tl.float32) * scale
    x1, y1 = tl.load(x_at + C), tl.load(y_at + C).to(tl.float32) * scale
    x9, y9 = tl.load(x_at + 9 * C), tl.load(y_at + 9 * C).to(tl.float32) * scale
    x2, y2 = tl.load(x_at + 2 * C), tl.load(y_at + 2 * C).to(tl.float32) * scale
    x8, y8 = tl.load(x_at + 8 * C), tl.load(y_at + 8 * C).to(tl.float32) * scale
    x3, y3 = tl.load(x_at + 3 * C), tl.load(y_at + 3 * C).to(tl.float32) * scale
    x7, y7 = tl.load(x_at + 7 * C), tl.load(y_at + 7 * C).to(tl.float32) * scale
    x4, y4 = tl.load(x_at + 4 * C), tl.load(y_at + 4 * C).to(tl.float32) * scale
    x6, y6 = tl.load(x_at + 6 * C), tl.load(y_at + 6 * C).to(tl.float32) * scale
    x5, y5 = tl.load(x_at + 5 * C), tl.load(y_at + 5 * C).to(tl.float32) * scale
    a, b = _W5 * x5, _W5 * y5
    q, p = a * x5 + b * y5, a * y5
    a, b, q, p = _add_pair(_W4, x4, x6, y4, y6, a, b, q, p)
    a, b, q, p = _add_pair(_W3, x3, x7, y3, y7, a, b, q, p)
    a, b, q, p = _add_pair(_W2, x2, x8, y2, y8, a, b, q, p)
    a, b, q, p = _add_pair(_W1, x1, x9, y1, y9, a, b, q, p)
    return _add_pair(_W0, x0, x10, y0, y10, a, b, q, p)


@triton.jit
def _row_blur(at, C: tl.constexpr):
    """The windowed sum across of one map."""
    row = _W5 * tl.load(at + 5 * C)
    row += _W4 * (tl.load(at + 4 * C) + tl.load(at + 6 * C))
    row += _W3 * (tl.load(at + 3 * C) + tl.load(at + 7 * C))
    row += _W2 * (tl.load(at + 2 * C) + tl.load(at + 8 * C))
    row += _W1 * (tl.load(at + C) + tl.load(at + 9 * C))
    return row + _W0 * (tl.load(at) + tl.load(at + 10 * C))


@triton.jit(do_not_specialize=_SIZES)
def value_kernel(
    image, truth,  # (height, n)
    maps,  # (3, plane): d ssim / d E[x], E[x^2], E[x y], laid out as gradient_kernel says
    partial,  # one for each program
    height, n, plane, core_x0, core_y0, core_x1, core_y1, rows,
    scale, l1_weight, ssim_weight, constant,
    NEEDS_GRAD: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1) * rows
    end = tl.minimum(first + rows, height)
    last = tl.minimum(first + rows + 10, height) - 1
    out_n = n - 10 * C
    begins_window = columns < out_n
    start = first.to(tl.int64) * n
    to = maps + start + columns + 10 * C
    # No window begins in the last columns: their lanes read pixels of their own and windows of
    # others, which is in bounds and does not count.
    own, window = tl.minimum(columns, n - 1), tl.minimum(columns, out_n - 1)
    x_own, y_own = image + start + own, truth + start + own
    x_at, y_at = image + start + window, truth + start + window
    if NEEDS_GRAD:
        zero = tl.zeros((BLOCK,), tl.float32)
        pad = (columns < 10 * C) & (first == 0)
        before = maps + columns
        tl.store(before, zero, mask=pad)
        tl.store(before + plane, zero, mask=pad)
        tl.store(before + plane + plane, zero, mask=pad)
    in_core = (columns >= core_x0) & (columns < core_x1)
    a1, a2, a3, a4, a5, a6, a7, a8, a9, a10 = _ten_zeros(BLOCK)
    b1, b2, b3, b4, b5, b6, b7, b8, b9, b10 = _ten_zeros(BLOCK)
    q1, q2, q3, q4, q5, q6, q7, q8, q9, q10 = _ten_zeros(BLOCK)
    p1, p2, p3, p4, p5, p6, p7, p8, p9, p10 = _ten_zeros(BLOCK)
    l1_sum, ssim_sum = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    x, y_raw = tl.load(x_own), tl.load(y_own)
    for row in range(first, last + 1):
        # The next row's pixels are asked for before this one's are used.
        step = tl.where(row < last, n, 0)
        x_own += step
        y_own += step
        x_next, y_next = tl.load(x_own), tl.load(y_own)
        y = y_raw.to(tl.float32) * scale
        a, b, q, p = _row_moments(x, y, x_at, y_at, scale, C)
        x_at += n
        y_at += n
        counts = in_core & (row >= core_y0) & (row < tl.minimum(core_y1, end))
        l1_sum += tl.where(counts, tl.abs(x - y), 0.0)
        x, y_raw = x_next, y_next
        mu_x, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10 = _push(
            a, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10
        )
        mu_y, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10 = _push(
            b, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10
        )
        squares, q1, q2, q3, q4, q5, q6, q7, q8, q9, q10 = _push(
            q, q1, q2, q3, q4, q5, q6, q7, q8, q9, q10
        )
        products, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10 = _push(
            p, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10
        )
        if row >= first + 10:
            both, either = mu_x * mu_y, mu_x * mu_x + mu_y * mu_y
            m1, m2 = 2 * both + _C1, 2 * (products - both) + _C2
            by_1, by_2 = 1 / (either + _C1), 1 / (squares - either + _C2)
            by_both = by_1 * by_2
            ssim = m1 * m2 * by_both
            ssim_sum += tl.where(begins_window, ssim, 0.0)
            if NEEDS_GRAD:
                d_mu = 2 * mu_y * (m2 - m1) * by_both - 2 * mu_x * ssim * (by_1 - by_2)
                written = columns < n
                tl.store(to, tl.where(begins_window, d_mu, 0.0), mask=written)
                d_xx, d_xy = -ssim * by_2, 2 * m1 * by_both
                tl.store(to + plane, tl.where(begins_window, d_xx, 0.0), mask=written)
                tl.store(to + plane + plane, tl.where(begins_window, d_xy, 0.0), mask=written)
                to += n
    value = l1_weight * tl.sum(l1_sum) + ssim_weight * tl.sum(ssim_sum)
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(partial + program, tl.where(program == 0, value + constant, value))


@triton.jit(do_not_specialize=_SIZES)
def gradient_kernel(
    image, truth,  # (height, n)
    maps,  # (3, plane), each 10 * C zeros, then height - 10 rows of out_n values and 10 * C zeros
    upstream,  # (): of the loss with respect to the value; any pointer for 1
    grad,  # (height, n)
    height, n, plane, core_x0, core_y0, core_x1, core_y1, rows,
    scale, l1_weight, ssim_weight,
    HAS_UPSTREAM: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1) * rows
    end = tl.minimum(first + rows, height)
    # The windows that a pixel lies in begin up to 10 rows and columns before it; the zeros stand
    # for those that would begin outside.
    begin, out_height = tl.maximum(first - 10, 0), height - 10
    at = maps + begin.to(tl.int64) * n + tl.minimum(columns, n - 1)
    here = columns < n
    pixel = first.to(tl.int64) * n + columns
    in_core = (columns >= core_x0) & (columns < core_x1)
    factor = 1.0
    if HAS_UPSTREAM:
        factor = tl.load(upstream)
    m1, m2, m3, m4, m5, m6, m7, m8, m9, m10 = _ten_zeros(BLOCK)
    q1, q2, q3, q4, q5, q6, q7, q8, q9, q10 = _ten_zeros(BLOCK)
    p1, p2, p3, p4, p5, p6, p7, p8, p9, p10 = _ten_zeros(BLOCK)
    for row in range(begin, end):
        live = row < out_height
        m = tl.where(live, _row_blur(at, C), 0.0)
        q = tl.where(live, _row_blur(at + plane, C), 0.0)
        p = tl.where(live, _row_blur(at + plane + plane, C), 0.0)
        at += tl.where(row + 1 < out_height, n, 0)
        g_mu, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10 = _push(
            m, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10
        )
        g_xx, q1, q2, q3, q4, q5, q6, q7, q8, q9, q10 = _push(
            q, q1, q2, q3, q4, q5, q6, q7, q8, q9, q10
        )
        g_xy, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10 = _push(
            p, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10
        )
        if row >= first:
            x = tl.load(image + pixel, mask=here, other=0.0)
            y = tl.load(truth + pixel, mask=here, other=0).to(tl.float32) * scale
            counts = in_core & (row >= core_y0) & (row < core_y1)
            sign = tl.where(x > y, 1.0, tl.where(x < y, -1.0, 0.0))
            total = tl.where(counts, l1_weight * sign, 0.0)
            total += ssim_weight * (g_mu + 2 * x * g_xx + y * g_xy)
            tl.store(grad + pixel, total * factor, mask=here)
            pixel += n
