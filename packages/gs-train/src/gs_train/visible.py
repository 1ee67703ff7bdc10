# SPDX-License-Identifier: Apache-2.0
"""Rendering only what a view sees."""

from __future__ import annotations

import torch
from torch import Tensor

import gs_cull
from gs_train.engine.backend import Model
from gs_train.renderers import Renderer, View
from gs_train.rows import NAMES


def visible_ids(model: Model, view: View, renderer: Renderer) -> Tensor:
    """Sorted ids of the rows that ``renderer`` would draw in ``view``.

    Returns:
        (R,) int64, which torch indexes with, on the model's device. Synchronises once.
    """
    visible = gs_cull.cull(
        model.params["means"],
        model.params["scales"],
        model.params["quats"],
        view.viewmat[None],
        view.K[None],
        view.width,
        view.height,
        opacities=model.params["opacities"],
        **renderer.options._asdict(),
    )
    return visible.ids.long()


@torch.no_grad()
def render_view(model: Model, view: View, renderer: Renderer) -> Tensor:
    """A view of the model over black, for looking at: no gradients, colours in [0, 1].

    Returns:
        (H, W, 3) float32 on the model's device.
    """
    ids = visible_ids(model, view, renderer)
    if not len(ids):
        return torch.zeros((view.height, view.width, 3), device=model.device)
    rows = {name: model.read(name, ids) for name in NAMES}
    splats = renderer.project(rows, view, sh_degree=model.sh_degree)
    return renderer.rasterize(splats)[0].clamp_(0.0, 1.0)
