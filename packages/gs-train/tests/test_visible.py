# SPDX-License-Identifier: Apache-2.0
"""Views of a model for looking at."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gs_raster import types
from gs_train.renderers import TooManyIntersectionsError
from gs_train.renderers.cpu import CpuRenderer
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.visible import render_view

sys.path.insert(0, str(Path(__file__).parent))
import random_scenes as scenes

VIEW = scenes.random_view(51, width=150, height=101)
ROWS = {name: values.float() for name, values in scenes.random_rows(51, VIEW, n_rows=300).items()}


def make_model() -> Gaussians:
    return Gaussians(ROWS, device="cpu", make_optimizer=torch.optim.Adam)


def test_a_view_of_too_many_intersections_is_drawn_in_parts_to_the_same_pixels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, renderer = make_model(), CpuRenderer()
    whole = render_view(model, VIEW, renderer)
    assert whole.max() > 0.5
    monkeypatch.setattr(types, "MAX_INSTANCES", 500)
    splats = renderer.project({k: p.detach() for k, p in model.params.items()}, VIEW, sh_degree=3)
    with pytest.raises(TooManyIntersectionsError):
        renderer.rasterize(splats)
    assert torch.equal(render_view(model, VIEW, renderer), whole)


def test_a_pixel_of_too_many_intersections_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "MAX_INSTANCES", 0)
    with pytest.raises(TooManyIntersectionsError, match="at most 0 tiles in all, got"):
        render_view(make_model(), VIEW, CpuRenderer())
