# SPDX-License-Identifier: Apache-2.0
"""Looking at a model without having all of it in one place: a view, or a chunk, at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gs_train.files.row_chunks import CHUNK_ROWS
from gs_train.losses.background import BLACK, Colour, nothing_over, over
from gs_train.renderers import Rect, Renderer, TooManyIntersectionsError, View
from gs_train.renderers.culling import visible_ids
from gs_train.rows.attributes import NAMES
from gs_train.rows.shown import ShownRows


@torch.no_grad()
def render_view(
    model: ShownRows, view: View, renderer: Renderer, background: Colour = BLACK
) -> Tensor:
    """A view of the model over a background, for looking at: no gradients, colours in [0, 1].

    Only the rows that the view sees are brought to the device. The model stays as it is.

    Returns:
        (H, W, 3) float32 on the model's device.
    """
    rows_of_view = model.within(view, renderer)
    ids = visible_ids(rows_of_view.params, view, renderer)
    if not len(ids):
        return nothing_over(background, view.height, view.width, model.device)
    keys = rows_of_view.keys.values.index_select(0, ids)
    rows = rows_of_view.snapshot(ids)
    splats = renderer.project(rows, view, sh_degree=model.sh_degree, keys=keys)

    def draw(rect: Rect) -> Tensor:
        return over(*renderer.rasterize(splats, rect), background)

    return in_halves(view.rect, draw).clamp_(0.0, 1.0)


def in_halves(rect: Rect, draw: Callable[[Rect], Tensor]) -> Tensor:
    """(h, w, 3) of a rectangle, drawn in as few parts as the renderer can count."""
    try:
        return draw(rect)
    except TooManyIntersectionsError:
        first, second = rect.halves()
        if not first.width or not first.height:
            raise
    axis = 1 if first.height == rect.height else 0
    return torch.cat([in_halves(half, draw) for half in (first, second)], axis)


def caught_up_chunks(model: ShownRows, chunk_rows: int = CHUNK_ROWS) -> Iterator[dict[str, Tensor]]:
    """Present values of all rows in the order in which they lie, a chunk at a time; nothing is
    changed.

    Returns:
        Iterator over chunks as :func:`gs_train.files.ply.write_ply` takes them, at least one; on
        the CPU.
    """
    return model.chunks(chunk_rows)


def all_rows(model: ShownRows) -> dict[str, Tensor]:
    """Copies of the present values of all rows, on the CPU, in the order in which they lie."""
    chunks = list(caught_up_chunks(model))
    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in NAMES}
