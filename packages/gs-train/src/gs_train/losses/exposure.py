# SPDX-License-Identifier: Apache-2.0
"""Affine colour of a photograph: what its camera made of the scene's colours."""

from __future__ import annotations

import torch
from torch import Tensor

EXPOSURE_BYTES = 10
"""A pixel, likewise (see `BACKGROUND_BYTES`): of the image with its exposure, its gradient through
it, and a product of both."""


def exposed(image: Tensor, exposure: Tensor) -> Tensor:
    """Each pixel's colour c as ``A c + b``.

    Args:
        image: (h, w, 3) float.
        exposure: (3, 4) float on the same device, A beside b.

    Returns:
        (h, w, 3). A pixel's bits do not depend on its place in the image.
    """
    return _mixed(image, exposure[:, :3]).add_(exposure[:, 3])


def gradient_by_image(gradient: Tensor, exposure: Tensor) -> Tensor:
    """Of a loss by the image, from the loss's gradient by :func:`exposed` of it.

    Args:
        gradient: (h, w, 3) float.
        exposure: (3, 4), as there.

    Returns:
        (h, w, 3).
    """
    return _mixed(gradient, exposure[:, :3].T)


def gradient_by_exposure(gradient: Tensor, image: Tensor) -> Tensor:
    """Of a loss by the exposure, from the loss's gradient by :func:`exposed` of the image.

    Args:
        gradient, image: (h, w, 3) float.

    Returns:
        (3, 4) float32, summed in float64; on a CPU the same bits for any number of threads.
    """
    columns = [_sums(gradient * image[..., channel : channel + 1]) for channel in range(3)]
    return torch.stack([*columns, _sums(gradient)], dim=1).float()


def _sums(values: Tensor) -> Tensor:
    """(3,) float64 over the pixels. Row by row: torch adds up one large sum in as many parts as it
    has threads."""
    return values.sum(1, dtype=torch.float64).sum(0)


def _mixed(image: Tensor, matrix: Tensor) -> Tensor:
    """(h, w, 3): the (3, 3) matrix times each colour."""
    mixed = image[..., 0:1] * matrix[:, 0]
    mixed += image[..., 1:2] * matrix[:, 1]
    mixed += image[..., 2:3] * matrix[:, 2]
    return mixed
