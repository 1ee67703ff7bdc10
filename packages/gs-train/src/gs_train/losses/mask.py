# SPDX-License-Identifier: Apache-2.0
"""The mask of a photograph, a fourth byte of each pixel, and SSIM of what the mask keeps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gs_train.losses.ssim import HALO, WINDOW, blur, blur_adjoint, of_windows

IGNORED, CARVED, KEPT = 0, 1, 255
"""Values of the fourth byte: the pixel says nothing; it is to be transparent; it is trained on."""

CHANNELS = 4
"""Of a photograph with a mask; others have 3. A depth map has two bytes more."""


def has_mask(truth: Tensor) -> bool:
    """Whether a photograph, (h, w, 3 to 6), has one."""
    return truth.shape[-1] % 2 == 0  # two bytes of a depth map change nothing


def kept_pixels(truth: Tensor) -> Tensor:
    """(h, w, 1) bool of a photograph with a mask: the pixels that loss and scores see."""
    return truth[..., 3:4] == KEPT


def carved_pixels(truth: Tensor) -> Tensor:
    """(h, w, 1) bool of a photograph with a mask: the pixels that are to be transparent."""
    return truth[..., 3:4] == CARVED


def masked_dssim_sum(image: Tensor, truth: Tensor, kept: Tensor) -> Tensor:
    """Sum of 1 - SSIM over the windows inside the image whose centre is kept, and over channels.

    A window's weights are those of its kept pixels, scaled to a sum of 1 (normalized convolution,
    Knutsson and Westin 1993). So no value and no gradient depends on a
    pixel that is not kept. A centre weighs 0.07 of its window: the scale is at most 15.
    Differentiable in ``image`` alone.

    Args:
        image, truth: (H, W, C) float.
        kept: (H, W, 1) bool.

    Returns:
        () float; 0 when the image is smaller than the window.
    """
    if min(image.shape[:2]) < WINDOW:
        return image.where(kept, 0.0).sum() * 0.0
    return _MaskedDssimSum.apply(image, truth, kept)


class _MaskedDssimSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, truth: Tensor, kept: Tensor) -> Tensor:
        total, ctx.grad = _sum_and_gradient(image, truth, kept, ctx.needs_input_grad[0])
        return total

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor | None, None, None]:
        grad, ctx.grad = ctx.grad, None
        return (None if grad is None else grad.mul_(grad_total)), None, None


def _sum_and_gradient(
    image: Tensor, truth: Tensor, kept: Tensor, needs_grad: bool
) -> tuple[Tensor, Tensor | None]:
    m = kept.permute(2, 0, 1).to(image.dtype)  # (1, H, W)
    # Not a product: what nobody sees may be infinite.
    x, y = (part.where(kept, 0.0).permute(2, 0, 1) for part in (image, truth))  # (C, H, W)
    counts = m[:, HALO:-HALO, HALO:-HALO]  # by the centre of each window
    scale = counts / blur(m).where(counts > 0, 1.0)
    means = blur(torch.stack([x, y, x * x, y * y, x * y])) * scale
    ssim, slopes = of_windows(means, needs_grad)
    total = (counts * (1 - ssim)).sum()
    if slopes is None:
        return total, None
    g_mu, g_xx, g_xy = blur_adjoint(slopes * scale)
    grad = -m * (g_mu + 2 * x * g_xx + y * g_xy)
    return total, grad.permute(1, 2, 0).contiguous()
