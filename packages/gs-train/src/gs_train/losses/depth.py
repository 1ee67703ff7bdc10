# SPDX-License-Identifier: Apache-2.0
"""The depth map of a photograph, the last two bytes of each pixel, low and high, and the loss that
compares a render with the map.

A pixel's inverse depth is its alpha over its mean depth,

    A = sum of w    D = sum of w z    I = A / (D / A) = A^2 / D    I = 0 where nothing is

that of what is there, over nothing at infinity. The loss of a pixel is ``|I - T|``, with T the
map's, and 0 where the map does not know. Its gradients are ``dI/dA = 2 A / D`` and
``dI/dD = -(A / D)^2``. ``A / D`` is one over a mean of depths, so that neither grows where alpha
falls to 0.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gs_train.losses.loss import Crop
from gs_train.losses.mask import has_mask, kept_pixels
from gs_train.renderers.protocol import DepthMeaning, MetricDepth

FULL = 65536
"""A map's value stands for ``value / FULL * scale + offset``."""


def depth_bytes(values: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """(h, w, 2) uint8 of a map's values, (h, w)."""
    return np.ascontiguousarray(values, "<u2")[..., None].view(np.uint8)  # low, then high


def given_inverse(truth: Tensor, of: DepthMeaning, dtype: torch.dtype) -> Tensor:
    """(h, w) inverse depths that the map of a photograph gives, at least 0; infinite where it does
    not know.

    Args:
        truth: (h, w, 5 or 6) uint8.
        of: the map's.
    """
    low, high = truth[..., -2], truth[..., -1]
    given = high.to(dtype).mul_(256.0).add_(low)
    if isinstance(of, MetricDepth):
        return given.mul_(of.unit).reciprocal_()
    return given.mul_(of.scale / FULL).add_(of.offset).clamp_(min=0.0)


def add_depth(
    share: Tensor,
    alpha: Tensor,
    depth: Tensor,
    truth: Tensor,
    crop: Crop,
    of: DepthMeaning,
    *,
    weight: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Add the mean absolute difference of inverse depths, the crop's share of the view's.

    The mean is over all pixels of the view; what a mask hides adds 0, and so does a pixel whose
    depth the map does not know.

    Args:
        share: () the loss so far.
        alpha: (h, w) float, rendered in the crop's :attr:`Crop.rect`.
        depth: (h, w) sum of weight times depth, as there.
        truth: (h, w, 5 or 6) uint8, the photograph there.
        crop: the rectangle.
        of: the map's.
        weight: of the difference, and of the view.

    Returns:
        The share, and its gradients by alpha and by depth, (h, w).
    """
    core = crop.core_in_rect
    inside = slice(core.y0, core.y1), slice(core.x0, core.x1)
    alpha, depth = alpha.detach(), depth.detach()
    ratio = (alpha / depth).where(depth > 0, 0.0)
    difference = (alpha * ratio).sub_(given_inverse(truth, of, alpha.dtype))
    if isinstance(of, MetricDepth):
        difference.masked_fill_(difference.isinf(), 0.0)
    if has_mask(truth):
        difference = difference.where(kept_pixels(truth)[..., 0], 0.0)
    factor = weight / (crop.view.width * crop.view.height)
    share = share + difference[inside].abs().sum() * factor
    slope = torch.zeros_like(alpha)
    torch.sign(difference[inside], out=slope[inside])
    slope *= factor
    of_alpha = (slope * ratio).mul_(2.0)
    return share, of_alpha, slope.mul_(ratio.square_()).neg_()
