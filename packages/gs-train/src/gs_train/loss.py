# SPDX-License-Identifier: Apache-2.0
"""The photometric loss, as terms that add over crops and views."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gs_train.renderers.protocol import Rect, View
from gs_train.ssim import HALO, WINDOW, ssim_sum


@dataclass(frozen=True)
class Term:
    """One summand of a loss over one rectangle: ``sum / weight`` is its share of the view's mean.

    ``weight`` counts the whole view's values, so shares of disjoint rectangles add up to the view.
    """

    sum: Tensor
    weight: int

    @property
    def share(self) -> Tensor:
        return self.sum / self.weight


@dataclass(frozen=True)
class Crop:
    """A rectangle of a view and what must be rendered so that its loss is exact.

    Attributes:
        view: the whole view.
        core: the pixels that this crop answers for; the cores of a view's crops tile it.
    """

    view: View
    core: Rect

    @property
    def rect(self) -> Rect:
        """The core and the 5 pixels around it that SSIM windows centred in it look at."""
        return Rect(
            max(self.core.x0 - HALO, 0),
            max(self.core.y0 - HALO, 0),
            min(self.core.x1 + HALO, self.view.width),
            min(self.core.y1 + HALO, self.view.height),
        )

    def core_of(self, image: Tensor) -> Tensor:
        """The core's pixels of an image of :attr:`rect`."""
        rect, core = self.rect, self.core
        return image[core.y0 - rect.y0 : core.y1 - rect.y0, core.x0 - rect.x0 : core.x1 - rect.x0]


def l1_term(image: Tensor, truth: Tensor, crop: Crop) -> Term:
    """Absolute error over the crop's core.

    Args:
        image, truth: (h, w, 3) float in the crop's :attr:`Crop.rect`.
    """
    difference = crop.core_of(image) - crop.core_of(truth)
    return Term(difference.abs().sum(), crop.view.width * crop.view.height * 3)


def dssim_term(image: Tensor, truth: Tensor, crop: Crop) -> Term:
    """1 - SSIM over the windows of the whole view (valid padding) that are centred in the core.

    Args:
        image, truth: (h, w, 3) float in the crop's :attr:`Crop.rect`.
    """
    rect = crop.rect
    windows = max(rect.width - WINDOW + 1, 0) * max(rect.height - WINDOW + 1, 0) * 3
    whole = max(crop.view.width - WINDOW + 1, 0) * max(crop.view.height - WINDOW + 1, 0) * 3
    return Term(windows - ssim_sum(image, truth), max(whole, 1))


def photometric_loss(image: Tensor, truth: Tensor, crop: Crop, ssim_lambda: float) -> Tensor:
    """(1 - lambda) L1 + lambda (1 - SSIM), the crop's share of its view's loss (Kerbl et al. 2023,
    eq. 7).

    Args:
        image: (h, w, 3) float, rendered in the crop's :attr:`Crop.rect`.
        truth: (h, w, 3) uint8 or float in [0, 1], the photograph there.
        crop: the rectangle.
        ssim_lambda: weight of the SSIM term, 0 to 1.

    Returns:
        () float. Summed over a view's crops it is the view's loss; divide by the batch size.
    """
    if truth.dtype == torch.uint8:
        truth = truth.to(image.dtype).div_(255.0)
    loss = (1.0 - ssim_lambda) * l1_term(image, truth, crop).share
    return loss + ssim_lambda * dssim_term(image, truth, crop).share
