# SPDX-License-Identifier: Apache-2.0
"""Parts of a view that are planned before anything of the view is drawn."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from one_thread import one_threaded
from street import street_rows, whole_street
from torch import Tensor

from gs_train.engine import drawing
from gs_train.engine.drawing import Drawing
from gs_train.engine.microbatches import Microbatch
from gs_train.engine.parts import planned_parts
from gs_train.engine.settings import StepSettings
from gs_train.engine.view_costs import LAG, ViewCosts
from gs_train.losses.loss import Crop
from gs_train.renderers import Rect, RenderOptions, Splats
from gs_train.renderers.cpu import CpuRenderer
from gs_train.rows.attributes import NAMES

VIEW = whole_street(width=96, height=64)
WHOLE = Crop(VIEW, VIEW.rect)
STEP = StepSettings(1, dict.fromkeys(NAMES, 1e-3), (0.9, 0.999), 1e-15, 0.2)
TRUTH = torch.randint(
    0, 256, (64, 96, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
)


@functools.cache
def _rows() -> dict[str, Tensor]:
    return street_rows(1500, sh_degree=1)


@pytest.mark.parametrize(
    ("crop", "n_intersections", "n_parts"),
    [
        (WHOLE, None, 1),
        (WHOLE, 100, 1),
        (WHOLE, 101, 2),
        (WHOLE, 201, 4),
        (Crop(VIEW, Rect(0, 0, 48, 64)), 200, 1),  # has half of them
        (Crop(VIEW, Rect(0, 0, 48, 64)), 202, 2),
        (Crop(VIEW, Rect(5, 5, 6, 6)), 10**9, 1),  # one pixel
    ],
)
def test_a_view_has_the_parts_that_its_intersections_need(
    crop: Crop, n_intersections: int | None, n_parts: int
) -> None:
    parts = planned_parts(crop, n_intersections, 100)
    assert len(parts) == n_parts
    painted = torch.zeros(VIEW.height, VIEW.width, dtype=torch.int32)
    for part in parts:
        painted[part.core.y0 : part.core.y1, part.core.x0 : part.core.x1] += 1
    core = crop.core
    assert (painted[core.y0 : core.y1, core.x0 : core.x1] == 1).all()
    assert painted.sum() == core.width * core.height


class _Rectangles(CpuRenderer):
    """Notes the rectangles that are rasterized."""

    def __init__(self) -> None:
        super().__init__(RenderOptions())
        self.drawn: list[Rect | None] = []

    def rasterize(self, splats: Splats, rect: Rect | None = None) -> tuple[Tensor, Tensor]:
        self.drawn.append(rect)
        return super().rasterize(splats, rect)

    def take(self) -> list[Rect | None]:
        drawn, self.drawn = self.drawn, []
        return drawn


def _draw(renderer: _Rectangles, costs: ViewCosts) -> tuple[float, dict[str, Tensor]]:
    rows = _rows()
    ids = torch.arange(len(rows["means"]), dtype=torch.int32)
    leaves = {name: values.clone().requires_grad_() for name, values in rows.items()}
    batch: Any = Drawing(renderer, STEP, lambda *_: None, 1, ids, costs)
    loss = batch.draw(Microbatch(0, WHOLE), TRUTH, ids, leaves)
    costs.end_batch()
    return float(loss), {name: leaf.grad for name, leaf in leaves.items()}  # type: ignore[misc]


@one_threaded
def test_a_view_is_drawn_in_parts_once_all_ranks_know_its_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renderer, costs = _Rectangles(), ViewCosts()
    loss, gradients = _draw(renderer, costs)
    assert renderer.take() == [None]
    count = costs.tensors()["counts"].item()
    monkeypatch.setattr(drawing, "MAX_INSTANCES", count - 1)
    for _ in range(LAG - 1):
        _draw(renderer, costs)
        assert renderer.take() == [None], "the count is not old enough"
    cut_loss, cut_gradients = _draw(renderer, costs)
    assert len(renderer.take()) == 2
    assert cut_loss == pytest.approx(loss, rel=1e-5)
    for name in NAMES:
        scale = gradients[name].abs().max()
        assert scale > 0
        assert (cut_gradients[name] - gradients[name]).abs().max() <= 1e-4 * scale, name
    # The parts' counts are the view's: it stays cut.
    for _ in range(2 * LAG):
        _draw(renderer, costs)
        assert len(renderer.take()) == 2
