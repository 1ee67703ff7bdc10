# SPDX-License-Identifier: Apache-2.0
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The SSIM sum and its gradient as two Triton kernels, one colour channel at a time.

A channel at a time keeps the scratch at three maps of one channel. Every thread reads its 11 x 11
window straight from the cache, so there are no intermediate maps and only two launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gs_train.ssim import C1, C2, WINDOW, window_weights

_TILE_H, _TILE_W = 8, 64
_weights_on: dict[torch.device, Tensor] = {}


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
    if image.device not in _weights_on:
        _weights_on[image.device] = torch.tensor(window_weights(), device=image.device)
    weights = _weights_on[image.device]
    out_h, out_w = height - WINDOW + 1, width - WINDOW + 1
    grid = (triton.cdiv(out_w, _TILE_W), triton.cdiv(out_h, _TILE_H))
    partial = torch.empty((channels, grid[0] * grid[1]), device=image.device)
    maps = torch.empty((3, out_h, out_w) if needs_grad else (3, 1, 1), device=image.device)
    grad = torch.empty_like(image) if needs_grad else None
    with torch.cuda.device(image.device):
        for channel in range(channels):
            _forward_kernel[grid](
                image, truth, weights, maps, partial[channel],
                channel, channels, width, out_h, out_w, C1, C2,
                NEEDS_GRAD=needs_grad, WINDOW=WINDOW, TILE_H=_TILE_H, TILE_W=_TILE_W,
            )  # fmt: skip
            if grad is not None:
                _backward_kernel[(triton.cdiv(width, _TILE_W), triton.cdiv(height, _TILE_H))](
                    image, truth, weights, maps, grad,
                    channel, channels, height, width, out_h, out_w,
                    WINDOW=WINDOW, TILE_H=_TILE_H, TILE_W=_TILE_W,
                )  # fmt: skip
    return partial.sum(), grad


@triton.jit
def _forward_kernel(
    image, truth,  # (H, W, C)
    weights,  # (WINDOW,)
    maps,  # (3, out_h, out_w): d sum / d E[x], E[x^2], E[x y]
    partial,  # (programs,): the sum of each tile
    channel, channels, width, out_h, out_w, c1, c2,
    NEEDS_GRAD: tl.constexpr, WINDOW: tl.constexpr, TILE_H: tl.constexpr, TILE_W: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(1) * TILE_H + tl.arange(0, TILE_H)[:, None]
    columns = tl.program_id(0) * TILE_W + tl.arange(0, TILE_W)[None, :]
    inside = (rows < out_h) & (columns < out_w)
    zero = tl.zeros((TILE_H, TILE_W), tl.float32)
    mu_x, mu_y, xx, yy, xy = zero, zero, zero, zero, zero
    for dy in range(WINDOW):
        wy = tl.load(weights + dy)
        for dx in tl.static_range(WINDOW):
            w = wy * tl.load(weights + dx)
            at = ((rows + dy).to(tl.int64) * width + columns + dx) * channels + channel
            x = tl.load(image + at, mask=inside, other=0.0)
            y = tl.load(truth + at, mask=inside, other=0.0)
            mu_x += w * x
            mu_y += w * y
            xx += w * x * x
            yy += w * y * y
            xy += w * x * y
    a1 = 2 * mu_x * mu_y + c1
    a2 = 2 * (xy - mu_x * mu_y) + c2
    b1 = mu_x * mu_x + mu_y * mu_y + c1
    b2 = xx - mu_x * mu_x + yy - mu_y * mu_y + c2
    ssim = a1 * a2 / (b1 * b2)
    tl.store(
        partial + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0),
        tl.sum(tl.where(inside, ssim, 0.0)),
    )
    if NEEDS_GRAD:
        plane = out_h.to(tl.int64) * out_w
        at = rows.to(tl.int64) * out_w + columns
        d_mu = 2 * mu_y * (a2 - a1) / (b1 * b2) - 2 * mu_x * ssim * (1 / b1 - 1 / b2)
        tl.store(maps + at, d_mu, mask=inside)
        tl.store(maps + plane + at, -ssim / b2, mask=inside)
        tl.store(maps + 2 * plane + at, 2 * a1 / (b1 * b2), mask=inside)


@triton.jit
def _backward_kernel(
    image, truth,  # (H, W, C)
    weights,  # (WINDOW,)
    maps,  # (3, out_h, out_w)
    grad,  # (H, W, C)
    channel, channels, height, width, out_h, out_w,
    WINDOW: tl.constexpr, TILE_H: tl.constexpr, TILE_W: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(1) * TILE_H + tl.arange(0, TILE_H)[:, None]
    columns = tl.program_id(0) * TILE_W + tl.arange(0, TILE_W)[None, :]
    plane = out_h.to(tl.int64) * out_w
    zero = tl.zeros((TILE_H, TILE_W), tl.float32)
    g_mu, g_xx, g_xy = zero, zero, zero
    for dy in range(WINDOW):
        wy = tl.load(weights + dy)
        r = rows - dy
        for dx in tl.static_range(WINDOW):
            w = wy * tl.load(weights + dx)
            c = columns - dx
            inside = (r >= 0) & (r < out_h) & (c >= 0) & (c < out_w)
            at = r.to(tl.int64) * out_w + c
            g_mu += w * tl.load(maps + at, mask=inside, other=0.0)
            g_xx += w * tl.load(maps + plane + at, mask=inside, other=0.0)
            g_xy += w * tl.load(maps + 2 * plane + at, mask=inside, other=0.0)
    inside = (rows < height) & (columns < width)
    at = (rows.to(tl.int64) * width + columns) * channels + channel
    x = tl.load(image + at, mask=inside, other=0.0)
    y = tl.load(truth + at, mask=inside, other=0.0)
    tl.store(grad + at, g_mu + 2 * x * g_xx + y * g_xy, mask=inside)
