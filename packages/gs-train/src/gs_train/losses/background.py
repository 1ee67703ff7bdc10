# SPDX-License-Identifier: Apache-2.0
"""What an image shows where the scene is transparent: a colour behind it."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

BackgroundKind = Literal["black", "white", "random"]
"""The same colour always, or one of chance for each view of each step."""

Colour: TypeAlias = tuple[float, float, float]
"""Red, green and blue in [0, 1]."""

BLACK: Colour = (0.0, 0.0, 0.0)
WHITE: Colour = (1.0, 1.0, 1.0)


BACKGROUND_BYTES = 12
"""A pixel, beyond what the peak of a view without it holds there: alpha, the rest, the image over
the colour and the gradient by alpha are gone in part when slots of the gradient are taken."""


def over(image: Tensor, alpha: Tensor, colour: Colour) -> Tensor:
    """The image over a colour; ``image`` itself over black.

    Args:
        image: (h, w, 3) float over black, as renderers draw it.
        alpha: (h, w) or (h, w, 1) float, on the same device.
        colour: behind the scene.

    Returns:
        (h, w, 3) float, without a graph.
    """
    if colour == BLACK:
        return image
    rest = 1.0 - alpha.detach().reshape(image.shape[:2])
    seen = torch.empty_like(image)
    for channel, value in enumerate(colour):
        torch.add(image.detach()[..., channel], rest, alpha=value, out=seen[..., channel])
    return seen


def nothing_over(colour: Colour, height: int, width: int, device: torch.device) -> Tensor:
    """(h, w, 3) float32 of no scene at all."""
    image = torch.zeros((height, width, 3), device=device)
    return over(image, image[..., 0], colour)


def gradient_by_alpha(gradient: Tensor, colour: Colour) -> Tensor:
    """Of a loss by alpha, through :func:`over` alone.

    Args:
        gradient: (h, w, 3) of the loss by the image over the colour; its gradient by the image over
            black is the same.

    Returns:
        (h, w) float.
    """
    red, green, blue = colour
    total = gradient[..., 0] * -red
    total = total.add_(gradient[..., 1], alpha=-green)
    return total.add_(gradient[..., 2], alpha=-blue)
