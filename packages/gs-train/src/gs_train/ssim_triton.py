# SPDX-License-Identifier: Apache-2.0
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The SSIM sum and its gradient as two Triton kernels, one colour channel at a time.

A tile of the image is blurred by a banded matrix from both sides, so a kernel reads each pixel once
or twice and holds all windowed means in registers. A channel at a time keeps the scratch at three
maps of one channel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gs_train.ssim import C1, C2, WINDOW, window_weights

_TILE = 32
"""Side of the square that a program reads; it writes ``_TILE - 10`` each way."""

_OUT = _TILE - WINDOW + 1
_bands: dict[torch.device, Tensor] = {}


def ssim_sum_and_grad(
    image: Tensor, truth: Tensor, needs_grad: bool
) -> tuple[Tensor, Tensor | None]:
    """Sum of the valid SSIM map and d sum / d image.

    Args:
        image, truth: (H, W, C) float32, contiguous, on one CUDA device; H, W >= 11.
        needs_grad: False leaves the gradient out.

    Returns:
        () float32 and (H, W, C) float32 or None.
    """
    height, width, channels = image.shape
    device = image.device
    if device not in _bands:
        _bands[device] = _band().to(device)
    band = _bands[device]
    out_h, out_w = height - WINDOW + 1, width - WINDOW + 1
    grid = (triton.cdiv(out_w, _OUT), triton.cdiv(out_h, _OUT))
    partial = torch.empty((channels, grid[0] * grid[1]), device=device)
    maps = torch.empty((3, out_h, out_w) if needs_grad else (3, 1, 1), device=device)
    grad = torch.empty_like(image) if needs_grad else None
    with torch.cuda.device(device):
        for channel in range(channels):
            _forward_kernel[grid](
                image, truth, band, maps, partial[channel],
                channel, channels, height, width, out_h, out_w, out_h * out_w, C1, C2,
                NEEDS_GRAD=needs_grad, TILE=_TILE, OUT=_OUT,
            )  # fmt: skip
            if grad is not None:
                _backward_kernel[(triton.cdiv(width, _OUT), triton.cdiv(height, _OUT))](
                    image, truth, band, maps, grad,
                    channel, channels, height, width, out_h, out_w, out_h * out_w,
                    TILE=_TILE, OUT=_OUT,
                )  # fmt: skip
    return partial.sum(), grad


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
def _forward_kernel(
    image, truth,  # (H, W, C)
    band_at,  # (TILE, TILE)
    maps,  # (3, out_h, out_w): d sum / d E[x], E[x^2], E[x y]
    partial,  # (programs,): the sum of each tile
    channel, channels, height, width, out_h, out_w, plane, c1, c2,
    NEEDS_GRAD: tl.constexpr, TILE: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    i, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    rows, columns = tl.program_id(1) * OUT + i, tl.program_id(0) * OUT + j
    band = tl.load(band_at + i * TILE + j)
    there = (rows < height) & (columns < width)
    at = (rows.to(tl.int64) * width + columns) * channels + channel
    x = tl.load(image + at, mask=there, other=0.0)
    y = tl.load(truth + at, mask=there, other=0.0)
    mu_x, mu_y = _blur(x, band), _blur(y, band)
    xx, yy, xy = _blur(x * x, band), _blur(y * y, band), _blur(x * y, band)
    a1 = 2 * mu_x * mu_y + c1
    a2 = 2 * (xy - mu_x * mu_y) + c2
    b1 = mu_x * mu_x + mu_y * mu_y + c1
    b2 = xx - mu_x * mu_x + yy - mu_y * mu_y + c2
    ssim = a1 * a2 / (b1 * b2)
    mine = (i < OUT) & (j < OUT) & (rows < out_h) & (columns < out_w)
    tl.store(
        partial + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0),
        tl.sum(tl.where(mine, ssim, 0.0)),
    )
    if NEEDS_GRAD:
        to = rows.to(tl.int64) * out_w + columns
        d_mu = 2 * mu_y * (a2 - a1) / (b1 * b2) - 2 * mu_x * ssim * (1 / b1 - 1 / b2)
        tl.store(maps + to, d_mu, mask=mine)
        tl.store(maps + plane + to, -ssim / b2, mask=mine)
        tl.store(maps + 2 * plane + to, 2 * a1 / (b1 * b2), mask=mine)


@triton.jit
def _backward_kernel(
    image, truth,  # (H, W, C)
    band_at,  # (TILE, TILE)
    maps,  # (3, out_h, out_w)
    grad,  # (H, W, C)
    channel, channels, height, width, out_h, out_w, plane,
    TILE: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    i, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    rows, columns = tl.program_id(1) * OUT + i, tl.program_id(0) * OUT + j
    band = tl.load(band_at + i * TILE + j)
    # The windows that a pixel lies in begin up to 10 pixels before it.
    from_row, from_column = rows - (TILE - OUT), columns - (TILE - OUT)
    there = (from_row >= 0) & (from_row < out_h) & (from_column >= 0) & (from_column < out_w)
    source = from_row.to(tl.int64) * out_w + from_column
    g_mu = _blur(tl.load(maps + source, mask=there, other=0.0), band)
    g_xx = _blur(tl.load(maps + plane + source, mask=there, other=0.0), band)
    g_xy = _blur(tl.load(maps + 2 * plane + source, mask=there, other=0.0), band)
    mine = (i < OUT) & (j < OUT) & (rows < height) & (columns < width)
    at = (rows.to(tl.int64) * width + columns) * channels + channel
    x = tl.load(image + at, mask=mine, other=0.0)
    y = tl.load(truth + at, mask=mine, other=0.0)
    tl.store(grad + at, g_mu + 2 * x * g_xx + y * g_xy, mask=mine)
