# SPDX-License-Identifier: Apache-2.0
"""Crops of views that are left over: they tile the view, and take about as much work each."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_scenes import random_view

from gs_train.losses.loss import Crop
from gs_train.ranks.cuts import LEAST_WIDTH, crops_of, cut
from gs_train.renderers import Rect
from gs_train.renderers.records import TILE

WIDE = Rect(0, 0, 1920, 1080)


@settings(deadline=None)
@given(
    work=st.lists(st.integers(0, 1000), min_size=0, max_size=12),
    n_ranks=st.integers(1, 9),
    width=st.sampled_from([10, 50, 1920]),
)
def test_every_round_is_full_where_views_are_wide_enough(
    work: list[int], n_ranks: int, width: int
) -> None:
    cores = [Rect(0, 0, width, 30)] * len(work)
    crops = crops_of(work, cores, n_ranks)
    left = len(work) % n_ranks
    if width == 1920:
        assert sum(crops) % n_ranks == 0
    assert all(n == 1 or n * LEAST_WIDTH <= width for n in crops)
    assert sum(crops) - len(work) <= (n_ranks - left if left else 0)
    if width == 1920 and any(n > 1 for n in crops):
        least = min(w for w, n in zip(work, crops) if n > 1)
        assert sum(n > 1 for n in crops) <= left
        assert sum(w > least for w in work) < left  # no view with more work was left whole


def test_the_views_with_most_work_are_cut() -> None:
    assert crops_of([5, 9, 7], [WIDE] * 3, 2) == (1, 2, 1)
    assert crops_of([9], [WIDE], 4) == (4,)
    assert crops_of([90, 30, 29], [WIDE] * 3, 8) == (4, 2, 2)
    assert crops_of([3, 2], [WIDE] * 2, 2) == (1, 1)
    assert crops_of([3, 2, 1], [WIDE] * 3, 1) == (1, 1, 1)
    assert crops_of([0], [WIDE], 3) == (3,)
    assert crops_of([9, 1], [Rect(0, 0, 2 * LEAST_WIDTH, 9), WIDE], 5) == (2, 3)


@st.composite
def cores(draw: st.DrawFn) -> tuple[Rect, np.ndarray]:
    x0, width = draw(st.integers(0, 60)), draw(st.integers(1, 200))
    n_columns = -(-(x0 + width) // TILE) + draw(st.integers(0, 2))
    counts = draw(st.lists(st.integers(0, 50), min_size=n_columns, max_size=n_columns))
    return Rect(x0, 3, x0 + width, 40), np.array(counts)


def cost_of(part: Rect, view_end: int, columns: np.ndarray) -> int:
    """Work of a part with the five pixels around it, and one for each column."""
    first, end = max(part.x0 - 5, 0) // TILE, -(-min(part.x1 + 5, view_end) // TILE)
    return int((columns[first:end] + 1).sum())


@settings(deadline=None)
@given(cores(), st.integers(1, 5))
def test_parts_tile_the_core_and_none_costs_more_than_need_be(
    found: tuple[Rect, np.ndarray], n: int
) -> None:
    core, columns = found
    parts = cut(core, n, columns)
    assert [part.x0 for part in parts[1:]] == [part.x1 for part in parts[:-1]]
    assert (parts[0].x0, parts[-1].x1) == (core.x0, core.x1)
    assert all(part.width > 0 and (part.y0, part.y1) == (core.y0, core.y1) for part in parts)
    middles = [x for x in range(8, core.x1, TILE) if core.x0 + 8 <= x <= core.x1 - 8]
    assert len(parts) == min(n, len(middles) + 1)

    # The core stands for the whole view here: there are no five pixels beyond it.
    def costliest(edges: list[int]) -> int:
        pieces = [Rect(a, core.y0, b, core.y1) for a, b in itertools.pairwise(edges)]
        first = core.x0 // TILE
        shifted = columns.copy()
        shifted[:first] = -1
        return max(cost_of(piece, core.x1, shifted) for piece in pieces)

    if len(parts) <= 3:
        best = min(
            costliest([core.x0, *chosen, core.x1])
            for chosen in itertools.combinations(middles, len(parts) - 1)
        )
        assert costliest([core.x0, *(part.x1 for part in parts)]) == best


def test_a_cut_makes_one_column_of_tiles_be_drawn_twice() -> None:
    view = random_view(0, width=160, height=48)
    parts = cut(view.rect, 2, np.ones(10))
    assert [part.x1 for part in parts] == [88, 160]
    drawn = [Crop(view, part).rect for part in parts]
    assert [(rect.x0 // TILE, -(-rect.x1 // TILE)) for rect in drawn] == [(0, 6), (5, 10)]


def test_where_nothing_is_known_parts_are_of_one_width() -> None:
    parts = cut(Rect(0, 0, 640, 10), 4, None)
    assert max(part.width for part in parts) - min(part.width for part in parts) <= TILE


def test_columns_of_another_view_are_refused() -> None:
    with pytest.raises(ValueError, match="columns must be of 40 columns of tiles at least, got 39"):
        cut(Rect(0, 0, 640, 10), 2, np.zeros(39))
