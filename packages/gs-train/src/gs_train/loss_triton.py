# SPDX-License-Identifier: Apache-2.0
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The photometric loss of a rectangle as two Triton kernels: its value, and its gradient.

A program blurs a tile of the image by a banded matrix from both sides, so each pixel is read about
twice and all windowed means stay in registers. Between the two directions only the three derivative
maps of SSIM are kept.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gs_train.renderers.protocol import Rect
from gs_train.ssim import C1, C2, WINDOW, window_weights

_TILE = 32
"""Side of the square that a program reads; it answers for ``_TILE - 10`` pixels each way."""

_OUT = _TILE - WINDOW + 1
_bands: dict[torch.device, Tensor] = {}


def weighted_l1_and_ssim(
    image: Tensor, truth: Tensor, core: Rect, l1_weight: float, ssim_weight: float
) -> Tensor:
    """``l1_weight * sum |image - truth| over core + ssim_weight * sum of the SSIM map``.

    Args:
        image: (H, W, C) float32 on a CUDA device; H, W >= 11. Differentiable.
        truth: (H, W, C) float32, or uint8 that stands for 255ths, there.
        core: pixels of the image that count for L1; all windows inside the image count for SSIM.

    Returns:
        () float32.
    """
    return _WeightedSums.apply(image, truth, core, l1_weight, ssim_weight)


class _WeightedSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, image: Tensor, truth: Tensor, core: Rect, l1_weight: float, ssim_weight: float
    ) -> Tensor:
        image, truth = image.contiguous(), truth.contiguous()
        height, width, channels = image.shape
        if image.device not in _bands:
            _bands[image.device] = _band().to(image.device)
        band = _bands[image.device]
        out_h, out_w = height - WINDOW + 1, width - WINDOW + 1
        grid = (triton.cdiv(width, _OUT), triton.cdiv(height, _OUT), channels)
        needs_grad = ctx.needs_input_grad[0]
        partial = image.new_empty(grid)
        maps = image.new_empty((channels, 3, out_h, out_w) if needs_grad else (1,))
        scale = 1.0 / 255.0 if truth.dtype == torch.uint8 else 1.0
        with torch.cuda.device(image.device):
            _value_kernel[grid](
                image, truth, band, maps, partial,
                channels, height, width, out_h, out_w, out_h * out_w,
                core.x0, core.y0, core.x1, core.y1, scale, l1_weight, ssim_weight, C1, C2,
                NEEDS_GRAD=needs_grad, TILE=_TILE, OUT=_OUT,
            )  # fmt: skip
        ctx.save_for_backward(image, truth, band, maps)
        ctx.grid, ctx.core, ctx.numbers = grid, core, (scale, l1_weight, ssim_weight)
        return partial.sum()

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor) -> Any:
        image, truth, band, maps = ctx.saved_tensors
        height, width, channels = image.shape
        out_h, out_w = height - WINDOW + 1, width - WINDOW + 1
        core = ctx.core
        grad = torch.empty_like(image)
        with torch.cuda.device(image.device):
            _gradient_kernel[ctx.grid](
                image, truth, band, maps, grad_total, grad,
                channels, height, width, out_h, out_w, out_h * out_w,
                core.x0, core.y0, core.x1, core.y1, *ctx.numbers,
                TILE=_TILE, OUT=_OUT,
            )  # fmt: skip
        return grad, None, None, None, None


def _band() -> Tensor:
    """(TILE, TILE) with row i holding the window from column i on.

    From the left it blurs columns of a tile, transposed from the right rows. The window is
    symmetric, so the same matrix is the blur's adjoint for a tile that starts 10 pixels earlier.
    Rows from OUT on hold what is left of the window, and what they yield is not used.
    """
    band = torch.zeros((_TILE, _TILE))
    for k, weight in enumerate(window_weights()):
        band.diagonal(k).fill_(weight)
    return band


@triton.jit
def _blur(tile, band):
    # IEEE float32: the variances are small differences of these means.
    columns = tl.dot(band, tile, input_precision="ieee")
    return tl.dot(columns, tl.trans(band), input_precision="ieee")


@triton.jit
def _value_kernel(
    image, truth,  # (H, W, C)
    band_at,  # (TILE, TILE)
    maps,  # (C, 3, out_h, out_w): d ssim / d E[x], E[x^2], E[x y]
    partial,  # one for each program
    channels, height, width, out_h, out_w, plane,
    core_x0, core_y0, core_x1, core_y1, scale, l1_weight, ssim_weight, c1, c2,
    NEEDS_GRAD: tl.constexpr, TILE: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    i, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    rows, columns = tl.program_id(1) * OUT + i, tl.program_id(0) * OUT + j
    channel = tl.program_id(2).to(tl.int64)
    band = tl.load(band_at + i * TILE + j)
    there = (rows < height) & (columns < width)
    at = (rows.to(tl.int64) * width + columns) * channels + channel
    x = tl.load(image + at, mask=there, other=0.0)
    y = tl.load(truth + at, mask=there, other=0).to(tl.float32) * scale
    mu_x, mu_y = _blur(x, band), _blur(y, band)
    xx, yy, xy = _blur(x * x, band), _blur(y * y, band), _blur(x * y, band)
    a1 = 2 * mu_x * mu_y + c1
    a2 = 2 * (xy - mu_x * mu_y) + c2
    b1 = mu_x * mu_x + mu_y * mu_y + c1
    b2 = xx - mu_x * mu_x + yy - mu_y * mu_y + c2
    ssim = a1 * a2 / (b1 * b2)
    mine = (i < OUT) & (j < OUT)
    window = mine & (rows < out_h) & (columns < out_w)
    core = mine & (rows >= core_y0) & (rows < core_y1) & (columns >= core_x0) & (columns < core_x1)
    value = tl.where(core, l1_weight * tl.abs(x - y), 0.0)
    value += tl.where(window, ssim_weight * ssim, 0.0)
    program = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * channels + channel
    tl.store(partial + program, tl.sum(value))
    if NEEDS_GRAD:
        to = channel * 3 * plane + rows.to(tl.int64) * out_w + columns
        d_mu = 2 * mu_y * (a2 - a1) / (b1 * b2) - 2 * mu_x * ssim * (1 / b1 - 1 / b2)
        tl.store(maps + to, d_mu, mask=window)
        tl.store(maps + to + plane, -ssim / b2, mask=window)
        tl.store(maps + to + 2 * plane, 2 * a1 / (b1 * b2), mask=window)


@triton.jit
def _gradient_kernel(
    image, truth,  # (H, W, C)
    band_at,  # (TILE, TILE)
    maps,  # (C, 3, out_h, out_w)
    grad_total,  # (): of the loss with respect to the value
    grad,  # (H, W, C)
    channels, height, width, out_h, out_w, plane,
    core_x0, core_y0, core_x1, core_y1, scale, l1_weight, ssim_weight,
    TILE: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    i, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    rows, columns = tl.program_id(1) * OUT + i, tl.program_id(0) * OUT + j
    channel = tl.program_id(2).to(tl.int64)
    band = tl.load(band_at + i * TILE + j)
    # The windows that a pixel lies in begin up to 10 pixels before it.
    from_row, from_column = rows - (TILE - OUT), columns - (TILE - OUT)
    there = (from_row >= 0) & (from_row < out_h) & (from_column >= 0) & (from_column < out_w)
    source = channel * 3 * plane + from_row.to(tl.int64) * out_w + from_column
    g_mu = _blur(tl.load(maps + source, mask=there, other=0.0), band)
    g_xx = _blur(tl.load(maps + source + plane, mask=there, other=0.0), band)
    g_xy = _blur(tl.load(maps + source + 2 * plane, mask=there, other=0.0), band)
    mine = (i < OUT) & (j < OUT) & (rows < height) & (columns < width)
    at = (rows.to(tl.int64) * width + columns) * channels + channel
    x = tl.load(image + at, mask=mine, other=0.0)
    y = tl.load(truth + at, mask=mine, other=0).to(tl.float32) * scale
    core = (rows >= core_y0) & (rows < core_y1) & (columns >= core_x0) & (columns < core_x1)
    sign = tl.where(x > y, 1.0, tl.where(x < y, -1.0, 0.0))
    total = tl.where(core, l1_weight * sign, 0.0)
    total += ssim_weight * (g_mu + 2 * x * g_xx + y * g_xy)
    tl.store(grad + at, total * tl.load(grad_total), mask=mine)
