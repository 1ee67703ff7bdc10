# SPDX-License-Identifier: Apache-2.0
"""The loss of a rectangle that has been drawn, and its gradients by what the renderer gave:
image, alpha and depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gs_train.engine.exposures import N_VALUES
from gs_train.engine.settings import StepSettings
from gs_train.losses.background import BLACK, gradient_by_alpha, over
from gs_train.losses.channels import has_depth
from gs_train.losses.depth import add_depth
from gs_train.losses.exposure import exposed, gradient_by_exposure, gradient_by_image
from gs_train.losses.loss import Crop, add_carving, loss_and_gradient
from gs_train.losses.mask import has_mask
from gs_train.renderers.protocol import DepthMeaning, View


class Planes(Protocol):
    """What a view has beside its colours.

    Attributes:
        alpha: (h, w), computed when it is asked for.
        depth: (h, w) sum of weight times depth; None: not drawn.
    """

    @property
    def alpha(self) -> Tensor: ...
    @property
    def depth(self) -> Tensor | None: ...


class GivenPlanes(NamedTuple):
    """`Planes` that are there."""

    alpha: Tensor
    depth: Tensor | None = None


class DrawnLoss(NamedTuple):
    """Of one crop.

    Attributes:
        share: () of the batch's loss; with exposures (13,), beside its gradient by the view's own.
        of_image: (h, w, 3) its gradient by the image over black.
        of_alpha: (h, w) its gradient by alpha; None for 0.
        of_depth: (h, w) its gradient by the sum of weight times depth; None for 0.
    """

    share: Tensor
    of_image: Tensor
    of_alpha: Tensor | None
    of_depth: Tensor | None


def inverse_depth_of(settings: StepSettings, view: View, truth: Tensor) -> DepthMeaning | None:
    """What the map of a photograph means, where the loss compares with it; else None: then nobody
    needs to draw depths.

    Args:
        truth: (h, w, 3 to 6) uint8, the photograph or a part.
    """
    if not settings.depth_weight or not has_depth(truth):
        return None
    return view.inverse_depth


def drawn_loss(
    image: Tensor,
    planes: Planes,
    truth: Tensor,
    crop: Crop,
    settings: StepSettings,
    *,
    weight: float,
    out: Tensor | None = None,
) -> DrawnLoss:
    """The crop's share of the batch's loss, without a graph.

    Args:
        image: (h, w, 3) float over black, drawn in the crop's :attr:`Crop.rect`.
        planes: of the same rectangle, asked for where they are needed; with depths unless
            :func:`inverse_depth_of` was None.
        truth: (h, w, 3 to 6) uint8, the photograph there.
        crop: the rectangle.
        settings: of the step.
        weight: of the view; one over the batch size.
        out: (h, w, 3) that the gradient may be written to.
    """
    colour = settings.background.colour(crop.view.name)
    seen = image if colour == BLACK else over(image, planes.alpha, colour)
    of_exposure = None
    if settings.exposures is None:
        share, of_image = loss_and_gradient(
            seen, truth, crop, settings.ssim_lambda, weight=weight, out=out
        )
    else:
        seen, exposure = seen.detach(), settings.exposures.of(crop.view.name)
        share, of_exposed = loss_and_gradient(
            exposed(seen, exposure), truth, crop, settings.ssim_lambda, weight=weight, out=out
        )
        of_exposure = gradient_by_exposure(of_exposed, seen)
        of_image = gradient_by_image(of_exposed, exposure)
    of_alpha = None if colour == BLACK else gradient_by_alpha(of_image, colour)
    if settings.carves and has_mask(truth):
        share, of_carving = add_carving(share, planes.alpha, truth, crop, weight=weight)
        of_alpha = of_carving if of_alpha is None else of_alpha.add_(of_carving)
    of_depth = None
    if (depth := planes.depth) is not None:
        of, of_others = crop.view.inverse_depth, of_alpha
        assert of is not None
        share, of_alpha, of_depth = add_depth(
            share, planes.alpha, depth, truth, crop, of, weight=weight * settings.depth_weight
        )
        if of_others is not None:
            of_alpha += of_others
    if of_exposure is not None:
        share = torch.cat([share.reshape(1), of_exposure.flatten()])
    return DrawnLoss(share, of_image, of_alpha, of_depth)


def share_shape(settings: StepSettings) -> tuple[int, ...]:
    """() or (13,) of a share, see `DrawnLoss`."""
    return () if settings.exposures is None else (1 + N_VALUES,)


def batch_loss(shares: Sequence[Tensor], views: Sequence[str], settings: StepSettings) -> Tensor:
    """() the loss of a batch; exposures get their gradients.

    Args:
        shares: of its microbatches, added in this order.
        views: names of their views.
    """
    if settings.exposures is not None:
        settings.exposures.take(views, torch.stack([share[1:] for share in shares]))
        shares = [share[0] for share in shares]
    loss = shares[0]
    for share in shares[1:]:
        loss = loss + share
    return loss
