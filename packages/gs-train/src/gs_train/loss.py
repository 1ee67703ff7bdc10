# SPDX-License-Identifier: Apache-2.0
"""The photometric loss, as terms that add over crops and views."""

from __future__ import annotations

import functools
import importlib.util
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

    @property
    def core_in_rect(self) -> Rect:
        """The core, in pixels of an image of :attr:`rect`."""
        x, y = self.rect.x0, self.rect.y0
        return Rect(self.core.x0 - x, self.core.y0 - y, self.core.x1 - x, self.core.y1 - y)


def l1_term(image: Tensor, truth: Tensor, crop: Crop) -> Term:
    """Absolute error over the crop's core.

    Args:
        image, truth: (h, w, 3) float in the crop's :attr:`Crop.rect`.
    """
    core = crop.core_in_rect
    inside = slice(core.y0, core.y1), slice(core.x0, core.x1)
    difference = image[inside] - truth[inside]
    return Term(difference.abs().sum(), crop.view.width * crop.view.height * 3)


def dssim_term(image: Tensor, truth: Tensor, crop: Crop) -> Term:
    """1 - SSIM over the windows of the whole view (valid padding) that are centred in the core.

    Args:
        image, truth: (h, w, 3) float in the crop's :attr:`Crop.rect`.
    """
    windows, whole = _windows(crop)
    return Term(windows - ssim_sum(image, truth), whole)


def photometric_loss(image: Tensor, truth: Tensor, crop: Crop, ssim_lambda: float) -> Tensor:
    """(1 - lambda) L1 + lambda (1 - SSIM), the crop's share of its view's loss (Kerbl et al. 2023,
    eq. 7).

    Args:
        image: (h, w, 3) float, rendered in the crop's :attr:`Crop.rect`.
        truth: (h, w, 3) uint8 or float in [0, 1], the photograph there.
        crop: the rectangle.
        ssim_lambda: weight of the SSIM term, 0 to 1.

    On CUDA, where Triton is installed, the sum of the two terms is one pair of kernels.

    Returns:
        () float. Summed over a view's crops it is the view's loss; divide by the batch size.
    """
    if _is_fused(image):
        from gs_train.loss_triton import weighted_l1_and_ssim

        n_pixels, windows, whole = crop.view.width * crop.view.height * 3, *_windows(crop)
        ssim_weight = ssim_lambda / whole
        core = crop.core_in_rect
        sums = weighted_l1_and_ssim(image, truth, core, (1 - ssim_lambda) / n_pixels, -ssim_weight)
        return sums + ssim_weight * windows
    if truth.dtype == torch.uint8:
        truth = truth.to(image.dtype).div_(255.0)
    loss = (1.0 - ssim_lambda) * l1_term(image, truth, crop).share
    return loss + ssim_lambda * dssim_term(image, truth, crop).share


def _is_fused(image: Tensor) -> bool:
    """Whether the terms can be had from one pair of kernels."""
    return (
        image.is_cuda
        and image.dtype == torch.float32
        and min(image.shape[:2]) >= WINDOW
        and _has_triton()
    )


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _windows(crop: Crop) -> tuple[int, int]:
    """Values of the SSIM map in the crop's rectangle, and (at least 1) in the whole view."""
    rect, view = crop.rect, crop.view
    windows = max(rect.width - WINDOW + 1, 0) * max(rect.height - WINDOW + 1, 0) * 3
    whole = max(view.width - WINDOW + 1, 0) * max(view.height - WINDOW + 1, 0) * 3
    return windows, max(whole, 1)
