# SPDX-License-Identifier: Apache-2.0
"""The photometric loss, as terms that add over crops and views."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import gs_raster
from gs_train.losses.channels import without_depth
from gs_train.losses.mask import carved_pixels, has_mask, kept_pixels, masked_dssim_sum
from gs_train.losses.ssim import HALO, WINDOW, ssim_sum
from gs_train.renderers.protocol import Rect, View

_HAS_KERNEL = gs_raster.build_info()["cuda_toolkit"] is not None


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


class _Windows(NamedTuple):
    """Where a crop and its windows lie.

    Attributes:
        rect: of the view, see `Crop.rect`.
        core: in pixels of an image of ``rect``.
        values: of the SSIM map in ``rect``.
        whole: of the SSIM map of the view, at least 1.
    """

    rect: Rect
    core: Rect
    values: int
    whole: int


@functools.lru_cache(maxsize=4096)
def _windows(core: Rect, width: int, height: int) -> _Windows:
    """Of a crop with this core in a view of this size."""
    rect = Rect(
        max(core.x0 - HALO, 0),
        max(core.y0 - HALO, 0),
        min(core.x1 + HALO, width),
        min(core.y1 + HALO, height),
    )
    x, y = rect.x0, rect.y0
    inside = Rect(core.x0 - x, core.y0 - y, core.x1 - x, core.y1 - y)
    values = max(rect.width - WINDOW + 1, 0) * max(rect.height - WINDOW + 1, 0) * 3
    whole = max(width - WINDOW + 1, 0) * max(height - WINDOW + 1, 0) * 3
    return _Windows(rect, inside, values, max(whole, 1))


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
        return self._windows.rect

    @property
    def core_in_rect(self) -> Rect:
        """The core, in pixels of an image of :attr:`rect`."""
        return self._windows.core

    @functools.cached_property
    def _windows(self) -> _Windows:
        return _windows(self.core, self.view.width, self.view.height)


def l1_term(image: Tensor, truth: Tensor, crop: Crop, kept: Tensor | None = None) -> Term:
    """Absolute error over the crop's core.

    Args:
        image, truth: (h, w, 3) float in the crop's :attr:`Crop.rect`.
        kept: (h, w, 1) bool, the pixels that count; None: all.
    """
    core = crop.core_in_rect
    inside = slice(core.y0, core.y1), slice(core.x0, core.x1)
    difference = image[inside] - truth[inside]
    if kept is not None:
        difference = difference.where(kept[inside], 0.0)
    return Term(difference.abs().sum(), crop.view.width * crop.view.height * 3)


def dssim_term(image: Tensor, truth: Tensor, crop: Crop, kept: Tensor | None = None) -> Term:
    """1 - SSIM over the windows of the whole view (valid padding) that are centred in the core.

    Args:
        image, truth: (h, w, 3) float in the crop's :attr:`Crop.rect`.
        kept: (h, w, 1) bool, the pixels that windows see and may be centred on; None: all.
    """
    windows = crop._windows
    if kept is not None:
        return Term(masked_dssim_sum(image, truth, kept), windows.whole)
    return Term(windows.values - ssim_sum(image, truth), windows.whole)


def photometric_loss(
    image: Tensor, truth: Tensor, crop: Crop, ssim_lambda: float, *, weight: float = 1.0
) -> Tensor:
    """(1 - lambda) L1 + lambda (1 - SSIM), the crop's share of its view's loss (Kerbl et al. 2023,
    eq. 7).

    Args:
        image: (h, w, 3) float, rendered in the crop's :attr:`Crop.rect`.
        truth: (h, w, 3) uint8 or float in [0, 1], the photograph there; or (h, w, 4) uint8, with
            the mask of :mod:`gs_train.losses.mask`. The view's loss stays a mean over all of its
            pixels: what is not kept adds 0. A depth map, two bytes more, counts for nothing here.
        crop: the rectangle.
        ssim_lambda: weight of the SSIM term, 0 to 1.
        weight: of the view; one over the batch size, for the mean.

    With a photograph of bytes on CUDA it is :func:`gs_raster.photometric_loss`.

    Returns:
        () float. Summed over a view's crops it is the view's loss, times the weight.
    """
    truth = without_depth(truth)
    if _is_native(image, truth):
        return _NativeLoss.apply(image, truth, crop, ssim_lambda, weight)
    kept = None
    if has_mask(truth):
        kept, truth = kept_pixels(truth), truth[..., :3]
    if truth.dtype == torch.uint8:
        truth = truth.to(image.dtype).div_(255.0)
    loss = (1.0 - ssim_lambda) * l1_term(image, truth, crop, kept).share
    return (loss + ssim_lambda * dssim_term(image, truth, crop, kept).share) * weight


def loss_and_gradient(
    image: Tensor,
    truth: Tensor,
    crop: Crop,
    ssim_lambda: float,
    *,
    weight: float = 1.0,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`photometric_loss` and its gradient, (h, w, 3), without a graph.

    Args:
        out: (h, w, 3) that the gradient may be written to.

    On a device both are on their way before autograd begins with the image's.
    """
    truth = without_depth(truth)
    if _is_native(image, truth):
        return _native(image, truth, crop, ssim_lambda, weight, out)
    leaf = image.detach().requires_grad_()
    loss = photometric_loss(leaf, truth, crop, ssim_lambda, weight=weight)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def add_carving(
    share: Tensor, alpha: Tensor, truth: Tensor, crop: Crop, *, weight: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Add the mean alpha of pixels that are to be transparent, the crop's share of the view's.

    Args:
        share: of :func:`loss_and_gradient`, where these pixels count for nothing.
        alpha: (h, w) float, rendered in the crop's :attr:`Crop.rect`.
        truth: (h, w, 4 or 6) uint8, as there.
        crop, weight: as there.

    Returns:
        The share, and its gradient by alpha, (h, w).
    """
    core = crop.core_in_rect
    inside = slice(core.y0, core.y1), slice(core.x0, core.x1)
    gradient = torch.zeros_like(alpha)
    gradient[inside] = carved_pixels(truth[inside])[..., 0]
    gradient *= weight / (crop.view.width * crop.view.height)
    return share + (alpha.detach() * gradient).sum(), gradient


def _is_native(image: Tensor, truth: Tensor) -> bool:
    """Whether gs-raster's kernel takes them."""
    kinds = image.dtype, truth.dtype
    return _HAS_KERNEL and image.is_cuda and kinds == (torch.float32, torch.uint8)


def _native(
    image: Tensor,
    truth: Tensor,
    crop: Crop,
    ssim_lambda: float,
    weight: float,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss with its gradient by one kernel."""
    values, windows = crop.view.width * crop.view.height * 3, crop._windows
    return gs_raster.photometric_loss(
        image.contiguous(),
        truth,
        l1_weight=weight * (1.0 - ssim_lambda) / values,
        dssim_weight=weight * ssim_lambda / windows.whole,
        core=windows.core,
        out=out,
    )


class _NativeLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, image: Tensor, truth: Tensor, crop: Crop, ssim_lambda: float, weight: float
    ) -> Tensor:
        loss, ctx.gradient = _native(image, truth, crop, ssim_lambda, weight)
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        gradient, ctx.gradient = ctx.gradient, None
        return gradient.mul_(upstream), None, None, None, None
