# SPDX-License-Identifier: Apache-2.0
"""What ranks learn of the views that each has drawn, by how these were drawn."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from street import street_views
from threads_as_ranks import ThreadWorld, results

from gs_train.engine.microbatches import Microbatch
from gs_train.engine.record_drawing import DrawnSplats
from gs_train.engine.view_costs import LAG, ViewCosts
from gs_train.engine.view_news import ViewNews
from gs_train.losses.loss import Crop
from gs_train.machine.host_copies import HostCopy
from gs_train.ranks.cuts import cut
from gs_train.ranks.view_columns import ViewColumns
from gs_train.renderers.protocol import Rect
from gs_train.renderers.records import TILE
from gs_train.world.alone import Alone

VIEW = street_views(width=96, height=64, focal=0.4)[0]
N_COLUMNS = 96 // TILE
IN_PARTS, FOR_MEMORY = "in parts", "for want of memory"


class Known(NamedTuple):
    """Of the view, once all ranks have it; and what is said."""

    cost: int | None
    columns: list[int] | None
    lines: list[str]


def _drawn(rect: Rect, how: str) -> DrawnSplats:
    columns = torch.arange(rect.x0 // TILE, -(-rect.x1 // TILE)) + 1
    share = gradients = torch.zeros(())
    if how == FOR_MEMORY:
        return DrawnSplats(share, gradients, None, None)
    if how == IN_PARTS:
        return DrawnSplats(share, gradients, 100, None)
    return DrawnSplats(share, gradients, int(columns.sum()), HostCopy(columns))


def _known(n_crops: int, how: str, *, has_columns: bool) -> Known:
    """What both ranks know of a view whose last crop rank 1 has drawn so, and rank 0 the others."""
    crops = [Crop(VIEW, core) for core in cut(VIEW.rect, n_crops, None)]
    microbatches = [Microbatch(0, crop, n_crops) for crop in crops]

    def run(world: ThreadWorld) -> Known:
        costs, columns = ViewCosts(), ViewColumns(LAG)
        news = ViewNews(world, costs, columns)  # type: ignore[arg-type]
        for k, crop in enumerate(crops):
            is_last = k == n_crops - 1
            if world.rank == is_last:
                drawn = _drawn(crop.rect, how if is_last else "")
                news.note(k, drawn if has_columns else drawn._replace(columns=None))
        news.end_batch(microbatches, has_columns=has_columns)
        for _ in range(LAG):
            costs.end_batch()
        news.tell()
        found = columns.known(VIEW.name)
        columns_found = None if found is None else found.tolist()
        return Known(costs.known(VIEW), columns_found, news.lines())

    first, second = results(2, run)
    assert first == second
    return first


COLUMNS = [*range(1, N_COLUMNS + 1)]


@pytest.mark.parametrize("n_crops", [1, 2])
def test_a_view_in_one_piece_or_in_crops_is_noted_with_its_columns(n_crops: int) -> None:
    assert _known(n_crops, "", has_columns=True) == (sum(COLUMNS), COLUMNS, [])


def test_a_view_whose_columns_are_not_counted_is_noted() -> None:
    assert _known(1, "", has_columns=False) == (sum(COLUMNS), None, [])


@pytest.mark.parametrize("has_columns", [False, True])
def test_a_whole_view_in_parts_is_noted_without_its_columns(has_columns: bool) -> None:
    """As on one rank: its count decides the parts, and not a rank's memory."""
    assert _known(1, IN_PARTS, has_columns=has_columns) == (100, None, [])


def test_a_view_with_a_crop_in_parts_is_not_noted() -> None:
    """Parts of a crop draw some tiles twice, and nobody knows how often."""
    assert _known(2, IN_PARTS, has_columns=True) == (None, None, [])


@pytest.mark.parametrize(("n_crops", "has_columns"), [(1, False), (1, True), (2, True)])
def test_what_memory_decides_is_said_and_not_noted(n_crops: int, has_columns: bool) -> None:
    line = (
        f"rank 1 has too little device memory for view {VIEW.name} in step 1 and draws it in "
        "parts: results differ by rounding"
    )
    assert _known(n_crops, FOR_MEMORY, has_columns=has_columns) == (None, None, [line])


class _Later:
    """In place of a `HostCopy`; notes when somebody waits for it."""

    waited = False

    def numpy(self) -> np.ndarray:
        self.waited = True
        return np.array(COLUMNS)


def test_columns_are_waited_for_when_they_are_told_and_not_before() -> None:
    """A rank goes on with its step while its device draws."""
    news = ViewNews(Alone(torch.device("cpu")), ViewCosts(), ViewColumns(LAG))
    columns: Any = _Later()
    news.note(0, DrawnSplats(torch.zeros(()), torch.zeros(()), sum(COLUMNS), columns))
    news.end_batch([Microbatch(0, Crop(VIEW, VIEW.rect), 1)], has_columns=True)
    assert not columns.waited
    assert news.words().tolist() == [sum(COLUMNS) + 1, *COLUMNS]
    assert columns.waited
