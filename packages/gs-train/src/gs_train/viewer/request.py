# SPDX-License-Identifier: Apache-2.0
"""What a page asks for, and what it is sent."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gs_train.renderers import View
from gs_train.rows.view_parts import Box, Quantity

Panel = Literal["photograph", "render", "error"]


@dataclass(frozen=True, eq=False)
class Request:
    """A picture that a page wants.

    Attributes:
        view: the camera at full size, in the frame of the scene, on the CPU.
        canvas: width and height of the page's picture; only their ratio matters.
        quantity: what is drawn.
        box: rows outside are left out; None: none are.
        photograph: index of the run's view that the camera is of; None: it flies free.
        panels: what is shown of a run's view, from left to right.
        is_exposed: whether colours get the exposure of the view's photograph, where it has one.
    """

    view: View
    canvas: tuple[int, int]
    quantity: Quantity = "color"
    box: Box | None = None
    photograph: int | None = None
    panels: tuple[Panel, ...] = ("render",)
    is_exposed: bool = False


class Picture(NamedTuple):
    """What a page is sent.

    Attributes:
        pixels: (h, w, 3) uint8.
        is_final: drawn at full size.
        seconds: that drawing took.
        note: about the picture, in one line; empty: nothing.
    """

    pixels: NDArray[np.uint8]
    is_final: bool
    seconds: float
    note: str = ""


def reduced(view: View, scale: float) -> View:
    """The view with fewer pixels, the same field of view."""
    width, height = (max(1, round(side * scale)) for side in (view.width, view.height))
    if (width, height) == (view.width, view.height):
        return view
    ratios = torch.tensor([[width / view.width], [height / view.height], [1.0]])
    return dataclasses.replace(view, K=view.K * ratios, width=width, height=height)
