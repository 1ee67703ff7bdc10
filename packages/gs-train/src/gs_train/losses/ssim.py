# SPDX-License-Identifier: Apache-2.0
"""Structural similarity as a training loss: the sum of the SSIM map with its gradient."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

WINDOW = 11
HALO = WINDOW // 2
"""Pixels around a rectangle that its SSIM windows look at."""

_SIGMA = 1.5
C1 = 0.01**2
C2 = 0.03**2


@functools.cache
def window_weights() -> tuple[float, ...]:
    """The 11 weights of the normalised Gaussian window, sigma 1.5 pixels."""
    raw = [math.exp(-((i - HALO) ** 2) / (2 * _SIGMA**2)) for i in range(WINDOW)]
    return tuple(w / sum(raw) for w in raw)


def ssim_sum(image: Tensor, truth: Tensor) -> Tensor:
    """Sum of the SSIM map over all windows that lie inside the image, and over its channels.

    Wang et al. 2004, window 11, sigma 1.5, K1 = 0.01, K2 = 0.03, data range 1, "valid" padding
    (what 3DGS trainers built on gsplat use). Differentiable in ``image`` alone. Separable shifted
    additions and the analytic gradient, because torch's convolutions are slow on a CPU and autograd
    would keep every intermediate map.

    Args:
        image: (H, W, C) float, C-contiguous or not.
        truth: (H, W, C) like ``image``.

    Returns:
        () float; 0 when the image is smaller than the window.

    Raises:
        ValueError: the shapes differ.
    """
    if image.shape != truth.shape or image.ndim != 3:
        raise ValueError(
            f"truth must have the image's shape (H, W, C) = {tuple(image.shape)}, "
            f"got {tuple(truth.shape)}"
        )
    if min(image.shape[:2]) < WINDOW:
        return image.sum() * 0.0
    return _SsimSum.apply(image, truth)


class _SsimSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, truth: Tensor) -> Tensor:
        total, ctx.grad = _sum_and_gradient(image, truth, ctx.needs_input_grad[0])
        return total

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor | None, None]:
        grad, ctx.grad = ctx.grad, None
        return (None if grad is None else grad.mul_(grad_total)), None


def _sum_and_gradient(
    image: Tensor, truth: Tensor, needs_grad: bool
) -> tuple[Tensor, Tensor | None]:
    x, y = image.permute(2, 0, 1), truth.permute(2, 0, 1)  # (C, H, W)
    ssim, slopes = of_windows(blur(torch.stack([x, y, x * x, y * y, x * y])), needs_grad)
    total = ssim.sum()
    if slopes is None:
        return total, None
    g_mu, g_xx, g_xy = blur_adjoint(slopes)
    grad = g_mu + 2 * x * g_xx + y * g_xy
    return total, grad.permute(1, 2, 0).contiguous()


def of_windows(means: Tensor, needs_slopes: bool) -> tuple[Tensor, Tensor | None]:
    """SSIM of windows, and its derivatives by the windowed means E[x], E[x^2] and E[x y].

    Args:
        means: (5, C, h, w) E[x], E[y], E[x^2], E[y^2] and E[x y].

    Returns:
        (C, h, w) and, if wanted, (3, C, h, w): the adjoint of the window carries these back to the
        pixels.
    """
    mu_x, mu_y, xx, yy, xy = means
    a1, a2 = 2 * mu_x * mu_y + C1, 2 * (xy - mu_x * mu_y) + C2
    b1, b2 = mu_x**2 + mu_y**2 + C1, xx - mu_x**2 + yy - mu_y**2 + C2
    ssim = a1 * a2 / (b1 * b2)
    if not needs_slopes:
        return ssim, None
    d_mu = 2 * mu_y * (a2 - a1) / (b1 * b2) - 2 * mu_x * ssim * (1 / b1 - 1 / b2)
    d_xx = -ssim / b2
    d_xy = 2 * a1 / (b1 * b2)
    return ssim, torch.stack([d_mu, d_xx, d_xy])


def blur(maps: Tensor) -> Tensor:
    """(..., H, W) to (..., H - 10, W - 10): the separable window, where it fits."""
    for axis in (-2, -1):
        n = maps.shape[axis] - WINDOW + 1
        out = torch.zeros_like(maps.narrow(axis, 0, n))
        for k, weight in enumerate(window_weights()):
            out.add_(maps.narrow(axis, k, n), alpha=weight)
        maps = out
    return maps


def blur_adjoint(maps: Tensor) -> Tensor:
    """(..., H - 10, W - 10) to (..., H, W): the transpose of :func:`blur`."""
    for axis in (-2, -1):
        n = maps.shape[axis]
        shape = list(maps.shape)
        shape[axis] = n + WINDOW - 1
        out = maps.new_zeros(shape)
        for k, weight in enumerate(window_weights()):
            out.narrow(axis, k, n).add_(maps, alpha=weight)
        maps = out
    return maps
