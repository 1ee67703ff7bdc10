# SPDX-License-Identifier: Apache-2.0
"""A view of a model drawn part by part: colour, depth or opacity, of all rows or of a box."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gs_train.losses.background import BLACK, Colour, nothing_over, over
from gs_train.losses.exposure import exposed
from gs_train.renderers import Rect, Renderer, Rows, TooManyIntersectionsError, View
from gs_train.renderers.culling import cameras_of, cull
from gs_train.rows.attributes import GEOMETRY
from gs_train.rows.shown import RowsOfView, ShownRows

Quantity = Literal["color", "depth", "alpha"]
"""What is drawn: colours over a background, the mean distance along the optical axis, or the
opacity."""

_SH_C0 = 0.28209479177387814
"""The harmonic of degree 0."""


@dataclasses.dataclass(frozen=True)
class Box:
    """A turned box: the points p with |rotation^T (p - centre)| <= size / 2 along each axis.

    Attributes:
        centre: (3,) in the model's frame.
        rotation: (3, 3), its columns are the box's axes.
        size: (3,) edges.
    """

    centre: tuple[float, float, float]
    rotation: tuple[tuple[float, float, float], ...]
    size: tuple[float, float, float]

    def holds(self, points: Tensor) -> Tensor:
        """(R,) bool of (R, 3) points."""
        centre, rotation, size = (
            points.new_tensor(value) for value in (self.centre, self.rotation, self.size)
        )
        within = ((points - centre)[:, :, None] * rotation).sum(1)
        return (within.abs() <= size / 2).all(1)


@torch.no_grad()
def view_parts(
    model: ShownRows,
    view: View,
    renderer: Renderer,
    *,
    quantity: Quantity = "color",
    background: Colour = BLACK,
    exposure: Tensor | None = None,
    box: Box | None = None,
    most_rows: int,
    most_pixels: int,
) -> Iterator[tuple[Rect, Tensor]]:
    """Draw a view a rectangle at a time. The parts together are the whole view, to the bit where
    the renderer's rectangles are.

    Only rows that a rectangle sees are brought to the device, and for depth and alpha only their
    geometry. The model stays as it is. A rectangle that sees more than ``most_rows`` is halved, so
    the device needs memory for about so many rows, however many the view sees.

    Args:
        view: on the renderer's device.
        quantity: what is drawn.
        background: behind colours.
        exposure: (3, 4) of a photograph, which colours over their background get, as in training;
            None: the scene's own colours.
        box: rows whose centres lie outside are left out; None: none are.
        most_rows: that one drawing takes, at least 1; a single pixel may take more.
        most_pixels: of one part, at least 1.

    Returns:
        Iterator over rectangles and their pixels on the device: colours (h, w, 3) in [0, 1]; depths
        (h, w, 1), 0 where nothing is; opacities (h, w, 1).

    Synchronises.
    """
    of_view = model.within(view, renderer)
    rects = [view.rect]
    while rects:
        rect = rects.pop()
        ids = _seen(of_view.params, view, rect, renderer)
        if box is not None:
            ids = ids[box.holds(of_view.params["means"].index_select(0, ids))]
        halves = _halves(rect) if len(ids) > most_rows else None
        if halves is not None:
            rects += reversed(halves)
            continue
        splats = None
        parts = [rect]
        while parts:
            part = parts.pop()
            halves = _halves(part)
            if halves is not None and part.width * part.height > most_pixels:
                parts += reversed(halves)
                continue
            if not len(ids):
                nothing = nothing_over(background, part.height, part.width, renderer.device)
                yield part, _shown(nothing, nothing[..., :1] * 0, quantity, BLACK, exposure)
                continue
            if splats is None:
                rows, sh_degree = _rows(of_view, ids, view, quantity)
                keys = of_view.keys.values.index_select(0, ids)
                splats = renderer.project(rows, view, sh_degree=sh_degree, keys=keys)
            try:
                image, alpha = renderer.rasterize(splats, part)
            except TooManyIntersectionsError:
                if halves is None:
                    raise
                parts += reversed(halves)
                continue
            yield part, _shown(image, alpha, quantity, background, exposure)


def _seen(geometry: Rows, view: View, rect: Rect, renderer: Renderer) -> Tensor:
    """(R,) int64, sorted: the rows that a rectangle of the view sees."""
    rects = None
    if rect != view.rect:
        rects = np.array([[rect.x0, rect.y0, rect.x1, rect.y1]], np.int32)
    return cull(geometry, cameras_of([view]), renderer, rects=rects).ids.long()


def _rows(
    model: RowsOfView, ids: Tensor, view: View, quantity: Quantity
) -> tuple[dict[str, Tensor], int]:
    """What is projected, with the degree of its harmonics."""
    if quantity == "color":
        return model.snapshot(ids), model.sh_degree
    rows = {name: model.params[name].index_select(0, ids) for name in GEOMETRY}
    forward = view.viewmat[2]
    depths = (rows["means"] * forward[:3]).sum(1) + forward[3]
    # Their own depth as their colour, in harmonics of degree 0.
    rows["sh0"] = ((depths - 0.5) / _SH_C0)[:, None, None].expand(-1, 1, 3).contiguous()
    rows["shN"] = depths.new_empty((len(ids), 0, 3))
    return rows, 0


def _shown(
    image: Tensor, alpha: Tensor, quantity: Quantity, background: Colour, exposure: Tensor | None
) -> Tensor:
    if quantity == "color":
        seen = over(image, alpha, background)
        return (seen if exposure is None else exposed(seen, exposure)).clamp(0.0, 1.0)
    if quantity == "alpha":
        return alpha
    return torch.where(alpha > 0, image[..., :1] / alpha.clamp_min(1e-10), alpha)


def _halves(rect: Rect) -> tuple[Rect, Rect] | None:
    """None of a rectangle of one pixel."""
    if rect.width * rect.height <= 1:
        return None
    return rect.halves()
