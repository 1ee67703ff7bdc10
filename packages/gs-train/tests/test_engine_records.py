# SPDX-License-Identifier: Apache-2.0
"""A microbatch of splats that arrived: drawn at once, or in parts where that does not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from one_thread import one_threaded
from photographed import photographed, seen_ids
from torch import Tensor

from gs_train.engine import record_drawing, room
from gs_train.engine.record_drawing import DrawnSplats, RecordDrawing
from gs_train.engine.room import Densities
from gs_train.engine.settings import StepSettings
from gs_train.engine.view_costs import LAG, ViewCosts
from gs_train.losses.loss import Crop
from gs_train.renderers import RenderOptions, TooManyIntersectionsError, View
from gs_train.renderers.cpu import CpuRenderer
from gs_train.renderers.protocol import Rect
from gs_train.renderers.records import SplatRecords

SETTINGS = StepSettings(1, {}, (0.9, 0.999), 1e-15, 0.2)
VIEW = 7


def _view() -> View:
    return photographed("street").views[VIEW]


def _sent(renderer: CpuRenderer) -> SplatRecords:
    scene = photographed("street")
    ids = seen_ids(scene.rows, _view())
    rows = {name: values.index_select(0, ids) for name, values in scene.rows.items()}
    splats = renderer.project(rows, _view(), sh_degree=1, keys=ids.int())
    out = SplatRecords.room_for(len(ids) + 9, "cpu")
    renderer.records.write(splats, out)
    return out


def _drawn(
    *,
    fails: Callable[[Rect], None] = lambda rect: None,
    costs: ViewCosts | None = None,
    counts_columns: bool = True,
) -> tuple[DrawnSplats, list[Rect]]:
    renderer = CpuRenderer(RenderOptions())
    sent, records, rects = _sent(renderer), renderer.records, []
    draw = records.draw

    def noted(splats: SplatRecords, view: View, rect: Rect, **how: Any) -> Any:
        fails(rect)
        rects.append(rect)
        return draw(splats, view, rect, **how)

    records.draw = noted  # type: ignore[method-assign]
    drawing = RecordDrawing(
        records, SETTINGS, 3, costs or ViewCosts(), Densities(), counts_columns=counts_columns
    )
    view = _view()
    crop = Crop(view, view.rect)
    end = drawing.begin(crop, photographed("street").photographs[VIEW], sent)
    return end(), rects


def _assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max()


def _raises_first(error: Exception, times: int = 1) -> Callable[[Rect], None]:
    left = [times]

    def fails(rect: Rect) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise error

    return fails


@one_threaded
def test_a_view_in_one_piece_counts_its_columns() -> None:
    drawn, rects = _drawn()
    assert rects == [_view().rect]
    assert drawn.columns is not None
    assert int(drawn.columns.numpy().sum()) == drawn.n_intersections
    assert _drawn(counts_columns=False)[0].columns is None


@one_threaded
def test_a_view_with_too_little_room_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = _drawn()
    for name in ("_SPARE", "_A_ROW"):
        monkeypatch.setattr(room, name, 0)
    drawn, rects = _drawn()
    assert rects == [_view().rect] * 2
    assert torch.equal(drawn.gradients, whole.gradients)
    assert torch.equal(drawn.share, whole.share)
    assert drawn.n_intersections == whole.n_intersections


@one_threaded
def test_more_intersections_than_can_be_counted_are_drawn_in_parts() -> None:
    whole, _ = _drawn()
    drawn, rects = _drawn(fails=_raises_first(TooManyIntersectionsError(2**31)))
    assert len(rects) == 2
    assert drawn.columns is None
    assert drawn.n_intersections is not None
    _assert_close(drawn.gradients, whole.gradients)
    _assert_close(drawn.share, whole.share)


@one_threaded
def test_parts_are_planned_where_the_last_count_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = _drawn()
    costs = ViewCosts()
    assert whole.n_intersections is not None
    costs.note(_view(), whole.n_intersections)
    for _ in range(LAG):
        costs.end_batch()
    monkeypatch.setattr(record_drawing, "MAX_INSTANCES", whole.n_intersections - 1)
    drawn, rects = _drawn(costs=costs)
    assert len(rects) == 2
    _assert_close(drawn.gradients, whole.gradients)


@one_threaded
def test_where_memory_decides_the_parts_no_other_rank_hears_of_them() -> None:
    whole, _ = _drawn()
    error = torch.cuda.OutOfMemoryError("CUDA out of memory")
    drawn, rects = _drawn(fails=_raises_first(error, times=2))
    assert len(rects) == 4
    assert drawn.n_intersections is None
    assert drawn.columns is None
    _assert_close(drawn.gradients, whole.gradients)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="needs more device memory than there is"):
        _drawn(fails=_raises_first(error, times=99))
