# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-defs
"""Alpha compositing of tile lists, front to back, and its gradient, back to front.

A tile's row of 16 pixels is one vector: the innermost loops have 16 iterations without branches and
read flat arrays at fixed distances, which is what LLVM needs to use SIMD. Values are
computed in the dtype of the arrays, without fast-math, so a pixel's result does not depend on how
the loop was compiled around it. A row of pixels that a splat cannot reach is skipped; since alpha
is below its threshold there, nothing changes.

Gradients of a pair (splat, tile) go to a slot of their own; each splat's slots are summed in the
order of tiles. The result has the same bits for any number of threads.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, types
from numba.extending import overload

# One splat: mean x, y, conic xx, xy, yy, opacity, red, green, blue, half extent y, largest sigma,
# depth.
SPLAT_WIDTH = 12
# One slot: mean x, y, conic xx, xy, yy, opacity, red, green, blue; |mean x|, |mean y| where absgrad
# is asked for; depth where depth is a fourth channel. The four widths tell the four cases apart.
SLOT_WIDTH = 9
ABSGRAD_WIDTH = 2
DEPTH_WIDTH = 1

ALPHA_THRESHOLD = 1.0 / 255.0
MAX_ALPHA = 0.999
MIN_TRANSMITTANCE = 1e-4

SIDE = 16
PIXELS = SIDE * SIDE
# Beyond this sigma every alpha is far below the threshold, and exp still has a normal float32.
MAX_SIGMA = 80.0


def _exp(x):
    """e^x for -80 <= x <= 0, within 2 units in the last place, in the dtype of x."""
    raise NotImplementedError("compiled code only")


@overload(_exp, inline="always")
def _exp_implementation(x):
    return {types.float32: _exp_float32, types.float64: _exp_float64}.get(x)


# x = n ln2 + r with |r| <= ln2 / 2; e^r by its Taylor series, 2^n by writing the exponent bits.
# Adding 1.5 * 2^mantissa rounds to an integer, which then sits in the lowest bits.
C0, C1, C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12, C13 = (
    1.0 / math.factorial(k) for k in range(14)
)
LOG2_E = 1.0 / math.log(2.0)
# ln2 in two parts, the first short enough that n times it is exact.
LN2_HIGH_32, LN2_LOW_32 = np.float32(0.693145751953125), np.float32(1.4286068203094172e-06)
LN2_HIGH_64, LN2_LOW_64 = 0.6931471803691238, 1.9082149292705877e-10


def _exp_float32(x):
    f = np.float32
    t = x * f(LOG2_E) + f(1.5 * 2.0**23)
    n = t - f(1.5 * 2.0**23)
    r = (x - n * LN2_HIGH_32) - n * LN2_LOW_32
    p = f(C3) + r * (f(C4) + r * (f(C5) + r * (f(C6) + r * f(C7))))
    p = f(C0) + r * (f(C1) + r * (f(C2) + r * p))
    return p * np.int32((np.float32(t).view(np.int32) + 127) << 23).view(np.float32)


def _exp_float64(x):
    t = x * LOG2_E + 1.5 * 2.0**52
    n = t - 1.5 * 2.0**52
    r = (x - n * LN2_HIGH_64) - n * LN2_LOW_64
    p = C9 + r * (C10 + r * (C11 + r * (C12 + r * C13)))
    p = C4 + r * (C5 + r * (C6 + r * (C7 + r * (C8 + r * p))))
    p = C0 + r * (C1 + r * (C2 + r * (C3 + r * p)))
    return p * np.int64((np.float64(t).view(np.int64) + 1023) << 52).view(np.float64)


@njit(cache=True, nogil=True, error_model="numpy")
def pack_splats(
    begin, end, order, means2d, conics, depths, radii, opacities, colors, packed
):  # fmt: skip
    """Gather what a tile reads of each splat, front to back, into (M, SPLAT_WIDTH)."""
    for k in range(begin, end):
        i = order[k]
        packed[k, 0] = means2d[i, 0]
        packed[k, 1] = means2d[i, 1]
        packed[k, 2] = conics[i, 0]
        packed[k, 3] = conics[i, 1]
        packed[k, 4] = conics[i, 2]
        packed[k, 5] = opacities[i]
        packed[k, 6] = colors[i, 0]
        packed[k, 7] = colors[i, 1]
        packed[k, 8] = colors[i, 2]
        packed[k, 9] = radii[i, 1]
        packed[k, 10] = math.log(np.float64(opacities[i]) / ALPHA_THRESHOLD)
        packed[k, 11] = depths[i]


@njit(cache=True, nogil=True, error_model="numpy")
def _held(value, low, high):
    """The value between two bounds, NaN as ``low``: a float out of range has no integer."""
    value = np.float64(value)
    value = value if value > low else np.float64(low)
    return value if value < high else np.float64(high)


@njit(cache=True, nogil=True, error_model="numpy")
def _pixel_rows(packed, k, top):
    """First and one past the last row of the tile's pixels inside the splat's extent."""
    y = np.float64(packed[k, 1]) - top
    radius = np.float64(packed[k, 9])
    first, last = _held(y - radius, 0, SIDE), _held(y + radius, 0, SIDE)
    return np.int64(math.floor(first)), np.int64(math.ceil(last))


@njit(cache=True, nogil=True, error_model="numpy")
def _can_reach(packed, k, dx_low, dx_high, dy):
    """Whether some point of the row has a sigma that leaves alpha above its threshold."""
    real = packed.dtype.type
    a, b, c = packed[k, 2], packed[k, 3], packed[k, 4]
    dx = min(max(-b * dy / a, dx_low), dx_high)
    size = a * dx * dx + c * dy * dy
    sigma = real(0.5) * size + b * dx * dy
    # The margin covers the rounding of sigma, which grows with the terms that cancel in it.
    return not sigma > packed[k, 10] + real(0.01) + real(2e-6) * size


# Scratch of a tile. A plane has a value for each pixel, a lane one for each column of pixels.
# Six planes lie in one flat array. Forward: transmittance, red, green, blue, 1 while the pixel is
# unfinished, and depth. Backward: transmittance, the shade behind, the gradient of red, green, blue
# and depth.
# Lanes are arrays of their own, or LLVM sees them overlap with planes.
# Unsigned: signed indices would each be tested for Python's negative ones.
PLANE, PLANE_2, PLANE_3, PLANE_4, PLANE_5 = (np.uint64(PIXELS * i) for i in range(1, 6))
LANE, LANE_2, LANE_3, LANE_4, LANE_5, LANE_6, LANE_7, LANE_8 = (
    np.uint64(SIDE * i) for i in range(1, 9)
)


@njit(cache=True, nogil=True, error_model="numpy")
def _draw_row(planes, centres, last, packed, k, pair, dy, row, depths):
    """Composite splat k, the tile's number ``pair``, over one row of pixels."""
    real = planes.dtype.type
    half, zero, one = real(0.5), real(0.0), real(1.0)
    threshold, highest = real(ALPHA_THRESHOLD), real(MAX_ALPHA)
    lowest, far = real(MIN_TRANSMITTANCE), real(MAX_SIGMA)
    mean_x, a, b, c, opacity = packed[k, 0], packed[k, 2], packed[k, 3], packed[k, 4], packed[k, 5]
    red, green, blue, depth = packed[k, 6], packed[k, 7], packed[k, 8], packed[k, 11]
    for x in range(LANE):
        q = row + x
        dx = mean_x - centres[x]
        sigma = half * (a * dx * dx + c * dy * dy) + b * dx * dy
        alpha = min(highest, opacity * _exp(-min(max(sigma, zero), far)))
        before = planes[q]
        after = before * (one - alpha)
        seen = (sigma >= zero) & (alpha >= threshold) & (planes[q + PLANE_4] > zero)
        finish = seen & (after <= lowest)
        drawn = seen & (after > lowest)
        weight = alpha * before if drawn else zero
        planes[q] = after if drawn else before
        planes[q + PLANE] += red * weight
        planes[q + PLANE_2] += green * weight
        planes[q + PLANE_3] += blue * weight
        if depths is not None:
            planes[q + PLANE_5] += depth * weight
        planes[q + PLANE_4] = zero if finish else planes[q + PLANE_4]
        last[q] = pair if drawn else last[q]


@njit(cache=True, nogil=True, error_model="numpy")
def _undraw_row(planes, centres, sums, last, packed, k, pair, dy, row, absgrad, grad_depths):
    """Take splat k off one row of pixels and add the row's gradients to the lanes of sums.

    With s the gradient of sigma the lanes hold, over the pixels of a column, the sums of s, s dy,
    s dy^2, the gradients of red, green, blue, |d x|, |d y| of the mean, and the gradient of depth.
    """
    real = planes.dtype.type
    half, zero, one = real(0.5), real(0.0), real(1.0)
    threshold, highest, far = real(ALPHA_THRESHOLD), real(MAX_ALPHA), real(MAX_SIGMA)
    mean_x, a, b, c, opacity = packed[k, 0], packed[k, 2], packed[k, 3], packed[k, 4], packed[k, 5]
    red, green, blue, depth = packed[k, 6], packed[k, 7], packed[k, 8], packed[k, 11]
    for x in range(LANE):
        q = row + x
        dx = mean_x - centres[x]
        sigma = half * (a * dx * dx + c * dy * dy) + b * dx * dy
        peak = opacity * _exp(-min(max(sigma, zero), far))
        alpha = min(highest, peak)
        drawn = (sigma >= zero) & (alpha >= threshold) & (pair <= last[q])
        rest = one / (one - alpha)
        before = planes[q] * rest
        weight = alpha * before if drawn else zero
        g_red, g_green, g_blue = planes[q + PLANE_2], planes[q + PLANE_3], planes[q + PLANE_4]
        shade = red * g_red + green * g_green + blue * g_blue
        if grad_depths is not None:
            shade += depth * planes[q + PLANE_5]
        g_alpha = before * shade - rest * planes[q + PLANE]
        g_sigma = -peak * g_alpha if drawn & (peak <= highest) else zero
        planes[q] = before if drawn else planes[q]
        planes[q + PLANE] += weight * shade
        sums[x] += g_sigma
        sums[x + LANE] += g_sigma * dy
        sums[x + LANE_2] += g_sigma * dy * dy
        sums[x + LANE_3] += weight * g_red
        sums[x + LANE_4] += weight * g_green
        sums[x + LANE_5] += weight * g_blue
        if absgrad:
            sums[x + LANE_6] += abs(g_sigma * (a * dx + b * dy))
            sums[x + LANE_7] += abs(g_sigma * (b * dx + c * dy))
        if grad_depths is not None:
            sums[x + LANE_8] += weight * planes[q + PLANE_5]


@njit(cache=True, nogil=True, error_model="numpy")
def _has_unfinished(planes):
    live = planes.dtype.type(0.0)
    for q in range(PLANE):
        live = max(live, planes[q + PLANE_4])
    return live > 0


@njit(cache=True, nogil=True, error_model="numpy")
def composite(
    begin, end, offsets, splats, packed, columns, grid_x, grid_y, rect,
    image, alpha, transmittance, last, depths,
):  # fmt: skip
    """Fill the pixels of ``rect`` that tiles ``begin`` to ``end`` hold.

    ``depths`` (h, w) is filled too where it is not None, for which numba compiles a kernel apart.
    ``last`` is the pair that contributed last to a pixel, counted from the tile's first; -1 where
    none did.
    """
    real = packed.dtype.type
    x0, y0, x1, y1 = rect
    half = real(0.5)
    planes = np.empty(6 * PIXELS, packed.dtype)
    centres = np.empty(SIDE, packed.dtype)
    tail = np.empty(PIXELS, np.int32)
    for tile in range(begin, end):
        left = grid_x + (tile % columns) * SIDE
        top = grid_y + (tile // columns) * SIDE
        first_row, end_row = max(y0 - top, 0), min(y1 - top, SIDE)
        first_column, end_column = max(x0 - left, 0), min(x1 - left, SIDE)
        planes[:PIXELS] = 1.0
        planes[PIXELS:] = 0.0
        tail[:] = -1
        for y in range(first_row, end_row):
            for x in range(first_column, end_column):
                planes[4 * PIXELS + y * SIDE + x] = 1.0
        for x in range(SIDE):
            centres[x] = real(left + x) + half
        x_low, x_high = real(left) + half, real(left + SIDE - 1) + half
        for pair in range(offsets[tile], offsets[tile + 1]):
            number = pair - offsets[tile]
            if number % 16 == 15 and not _has_unfinished(planes):
                break
            k = splats[pair]
            mean_x, mean_y = packed[k, 0], packed[k, 1]
            low, high = _pixel_rows(packed, k, top)
            for y in range(max(low, first_row), min(high, end_row)):
                dy = mean_y - (real(top + y) + half)
                if _can_reach(packed, k, mean_x - x_high, mean_x - x_low, dy):
                    row = np.uint64(y * SIDE)
                    _draw_row(planes, centres, tail, packed, k, np.int32(number), dy, row, depths)
        for y in range(first_row, end_row):
            for x in range(first_column, end_column):
                q = y * SIDE + x
                i, j = top + y - y0, left + x - x0
                image[i, j, 0] = planes[PIXELS + q]
                image[i, j, 1] = planes[2 * PIXELS + q]
                image[i, j, 2] = planes[3 * PIXELS + q]
                if depths is not None:
                    depths[i, j] = planes[5 * PIXELS + q]
                alpha[i, j, 0] = real(1.0) - planes[q]
                transmittance[i, j] = planes[q]
                last[i, j] = tail[q]


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_slot(sums, centres, packed, k, slot_grad, grad_depths):
    """Sum the lanes, in the order of columns, into the gradients of splat k."""
    real = sums.dtype.type
    zero, half = real(0.0), real(0.5)
    a, b, c, opacity = packed[k, 2], packed[k, 3], packed[k, 4], packed[k, 5]
    s = s_x = s_y = s_xx = s_xy = s_yy = zero
    for x in range(LANE):
        dx = packed[k, 0] - centres[x]
        column = sums[x]
        column_y = sums[LANE + x]
        s += column
        s_x += column * dx
        s_xx += column * dx * dx
        s_y += column_y
        s_xy += column_y * dx
        s_yy += sums[LANE_2 + x]
    slot_grad[0] = a * s_x + b * s_y
    slot_grad[1] = b * s_x + c * s_y
    slot_grad[2] = half * s_xx
    slot_grad[3] = s_xy
    slot_grad[4] = half * s_yy
    # A splat that was nowhere drawn may have opacity 0.
    slot_grad[5] = zero if s == zero else -s / opacity
    for i in range(6, len(slot_grad)):
        lanes = LANE * np.uint64(i - 3)
        if grad_depths is not None and i == len(slot_grad) - 1:
            lanes = LANE_8
        total = zero
        for x in range(LANE):
            total += sums[lanes + x]
        slot_grad[i] = total


@njit(cache=True, nogil=True, error_model="numpy")
def composite_backward(
    begin, end, offsets, splats, slots, packed, columns, grid_x, grid_y, rect,
    transmittance, last, grad_image, grad_alpha, grad_depths, slot_grads,
):  # fmt: skip
    """Fill the slots of the pairs of tiles ``begin`` to ``end``; see SLOT_WIDTH."""
    real = packed.dtype.type
    x0, y0, x1, y1 = rect
    absgrad = slot_grads.shape[1] >= SLOT_WIDTH + ABSGRAD_WIDTH
    half = real(0.5)
    planes = np.empty(6 * PIXELS, packed.dtype)
    centres = np.empty(SIDE, packed.dtype)
    sums = np.empty((8 if grad_depths is None else 9) * SIDE, packed.dtype)
    tail = np.empty(PIXELS, np.int32)
    for tile in range(begin, end):
        left = grid_x + (tile % columns) * SIDE
        top = grid_y + (tile // columns) * SIDE
        first_row, end_row = max(y0 - top, 0), min(y1 - top, SIDE)
        first_column, end_column = max(x0 - left, 0), min(x1 - left, SIDE)
        planes[:PIXELS] = 1.0
        planes[PIXELS:] = 0.0
        tail[:] = -1
        deepest = np.int64(-1)
        for y in range(first_row, end_row):
            for x in range(first_column, end_column):
                q = y * SIDE + x
                i, j = top + y - y0, left + x - x0
                tail[q] = last[i, j]
                deepest = max(deepest, np.int64(last[i, j]))
                planes[q] = transmittance[i, j]
                planes[PIXELS + q] = -transmittance[i, j] * grad_alpha[i, j, 0]
                planes[2 * PIXELS + q] = grad_image[i, j, 0]
                planes[3 * PIXELS + q] = grad_image[i, j, 1]
                planes[4 * PIXELS + q] = grad_image[i, j, 2]
                if grad_depths is not None:
                    planes[5 * PIXELS + q] = grad_depths[i, j]
        for x in range(SIDE):
            centres[x] = real(left + x) + half
        x_low, x_high = real(left) + half, real(left + SIDE - 1) + half
        for pair in range(offsets[tile] + deepest + 1, offsets[tile + 1]):
            slot_grads[slots[pair], :] = 0.0
        for number in range(deepest, -1, -1):
            pair = offsets[tile] + number
            k = splats[pair]
            mean_x, mean_y = packed[k, 0], packed[k, 1]
            sums[:] = 0.0
            low, high = _pixel_rows(packed, k, top)
            for y in range(max(low, first_row), min(high, end_row)):
                dy = mean_y - (real(top + y) + half)
                if _can_reach(packed, k, mean_x - x_high, mean_x - x_low, dy):
                    row = np.uint64(y * SIDE)
                    _undraw_row(
                        planes, centres, sums, tail, packed, k, np.int32(number), dy, row,
                        absgrad, grad_depths,
                    )  # fmt: skip
            _fill_slot(sums, centres, packed, k, slot_grads[slots[pair]], grad_depths)


@njit(cache=True, nogil=True, error_model="numpy")
def sum_slots(
    begin, end, order, slot_begins, slot_grads,
    grad_means2d, grad_conics, grad_depths, grad_opacities, grad_colors, absgrad,
):  # fmt: skip
    """Add up each splat's slots, in the order of tiles, into its row of the gradients."""
    width = slot_grads.shape[1]
    sums = np.empty(width, slot_grads.dtype)
    for k in range(begin, end):
        sums[:] = 0
        for slot in range(slot_begins[k], slot_begins[k + 1]):
            for c in range(width):
                sums[c] += slot_grads[slot, c]
        i = order[k]
        grad_means2d[i, 0] = sums[0]
        grad_means2d[i, 1] = sums[1]
        grad_conics[i, 0] = sums[2]
        grad_conics[i, 1] = sums[3]
        grad_conics[i, 2] = sums[4]
        grad_opacities[i] = sums[5]
        grad_colors[i, 0] = sums[6]
        grad_colors[i, 1] = sums[7]
        grad_colors[i, 2] = sums[8]
        if width >= SLOT_WIDTH + ABSGRAD_WIDTH:
            absgrad[i, 0] = sums[9]
            absgrad[i, 1] = sums[10]
        if width in (SLOT_WIDTH + DEPTH_WIDTH, SLOT_WIDTH + ABSGRAD_WIDTH + DEPTH_WIDTH):
            grad_depths[i] = sums[width - 1]
