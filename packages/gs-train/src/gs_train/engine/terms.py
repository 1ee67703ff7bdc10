# SPDX-License-Identifier: Apache-2.0
"""Terms of the loss that look at what a view has beside its colours: alpha and depth."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from gs_train.engine.settings import StepSettings
from gs_train.losses.channels import has_depth
from gs_train.losses.depth import add_depth
from gs_train.losses.loss import Crop, add_carving
from gs_train.losses.mask import has_mask
from gs_train.renderers.protocol import InverseDepth, View


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


class Gradients(NamedTuple):
    """Of the loss, (h, w) each; None for 0.

    Attributes:
        alpha: by alpha.
        depth: by the sum of weight times depth.
    """

    alpha: Tensor | None = None
    depth: Tensor | None = None


def inverse_depth_of(settings: StepSettings, view: View, truth: Tensor) -> InverseDepth | None:
    """What the map of a photograph means, where the loss compares with it; else None: then nobody
    needs to draw depths.

    Args:
        truth: (h, w, 3 to 6) uint8, the photograph or a part.
    """
    if not settings.depth_weight or not has_depth(truth):
        return None
    return view.inverse_depth


def add_terms(
    share: Tensor,
    planes: Planes,
    truth: Tensor,
    crop: Crop,
    settings: StepSettings,
    *,
    weight: float,
) -> tuple[Tensor, Gradients]:
    """Add the terms that masks and depth maps ask for, the crop's share of the view's.

    Args:
        share: () of the photometric loss.
        planes: rendered in the crop's :attr:`Crop.rect`, with depths unless
            :func:`inverse_depth_of` was None.
        truth: (h, w, 3 to 6) uint8, the photograph there.
        crop: the rectangle.
        settings: of the step.
        weight: of the view.

    Returns:
        The share, and its gradients by alpha and depth.
    """
    of_alpha, of_depth = None, None
    if settings.carves and has_mask(truth):
        share, of_alpha = add_carving(share, planes.alpha, truth, crop, weight=weight)
    if (depth := planes.depth) is not None:
        of = crop.view.inverse_depth
        assert of is not None
        of_carving = of_alpha
        share, of_alpha, of_depth = add_depth(
            share, planes.alpha, depth, truth, crop, of, weight=weight * settings.depth_weight
        )
        if of_carving is not None:
            of_alpha += of_carving
    return share, Gradients(of_alpha, of_depth)
