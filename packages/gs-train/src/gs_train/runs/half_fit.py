# SPDX-License-Identifier: Apache-2.0
"""A held-out image whose colours are fitted on its left half, to be scored on its right half.

Nobody knows the exposure of a photograph that was not trained on. One half of the photograph tells,
and the other half is scored with it: no pixel is both fitted to and scored.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gs_train.losses.exposure import exposed

LEAST_WIDTH = 6
"""Pixels of a half that SSIM's window can look at, and of its height."""

_PULL = 1e-6
"""Weight of no correction, a pixel: decides only what the pixels leave open."""


class RightHalf(NamedTuple):
    """What is scored.

    Attributes:
        image: (H, w, 3) float32 in [0, 1], its colours fitted.
        truth: (H, w, 3) float32.
        kept: (H, w, 1) bool, the pixels that count; None: all.
    """

    image: Tensor
    truth: Tensor
    kept: Tensor | None


def right_half(image: Tensor, truth: Tensor, kept: Tensor | None = None) -> RightHalf | None:
    """The right half of an image after the affine colour that is best on its left half.

    Args:
        image: (H, W, 3) float32 in [0, 1].
        truth: (H, W, 3) float32, on the same device.
        kept: (H, W, 1) bool, the pixels that count; None: all.

    Returns:
        None where a half is narrower or lower than 6 pixels, or has no pixel that counts.
    """
    height, width, _ = image.shape
    middle = width // 2
    if min(height, middle) < LEAST_WIDTH:
        return None
    left, right = slice(None, middle), slice(middle, None)
    if kept is not None and not (kept[:, left].any() and kept[:, right].any()):
        return None
    kept_left, kept_right = (None if kept is None else kept[:, half] for half in (left, right))
    exposure = fitted_exposure(image[:, left], truth[:, left], kept_left)
    fitted = exposed(image[:, right], exposure).clamp_(0.0, 1.0)
    return RightHalf(fitted, truth[:, right], kept_right)


def fitted_exposure(image: Tensor, truth: Tensor, kept: Tensor | None = None) -> Tensor:
    """The affine colour of an image that is nearest to another one in the mean square.

    Args:
        image, truth: (H, W, 3) float32.
        kept: (H, W, 1) bool, the pixels that count; None: all.

    Returns:
        (3, 4) float32, as :func:`gs_train.losses.exposure.exposed` takes it. On a CPU the same
        bits for any number of threads.
    """
    weights = torch.ones_like(image[..., :1]) if kept is None else kept.to(image.dtype)
    x = torch.cat([image, torch.ones_like(weights)], dim=2) * weights

    def products(y: Tensor) -> Tensor:
        """(4, C) float64 sums over the pixels, row by row: see `gradient_by_exposure`."""
        columns = [
            (x * y[..., c : c + 1]).sum(1, dtype=torch.float64).sum(0) for c in range(y.shape[2])
        ]
        return torch.stack(columns, dim=1).cpu()

    pull = _PULL * float(weights.sum(dtype=torch.float64))
    identity = torch.eye(4, 3, dtype=torch.float64)
    left = products(x) + pull * torch.eye(4, dtype=torch.float64)
    right = products(torch.where(weights > 0, truth, 0.0)) + pull * identity
    return torch.linalg.solve(left, right).T.float().to(image.device)
