# SPDX-License-Identifier: Apache-2.0
"""Splats as records: the same bits when they arrive, and empty records that draw nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_scenes import leaves, random_rows, random_view
from torch import Tensor

from gs_train.renderers import RenderOptions, Splats, View, make_renderer
from gs_train.renderers.cpu import CpuRenderer
from gs_train.renderers.records import FIELDS, NO_KEY, REACH, TILE, SplatRecords


def a_view() -> View:
    return random_view(3, width=150, height=70)


def a_renderer(*, absgrad: bool = False) -> CpuRenderer:
    renderer = make_renderer("cpu", RenderOptions(), absgrad=absgrad)
    assert isinstance(renderer, CpuRenderer)
    return renderer


def splats_of(view: View, n_rows: int = 250, dtype: torch.dtype = torch.float32) -> Splats:
    rows = leaves(random_rows(3, view, n_rows=n_rows), dtype)
    keys = torch.arange(n_rows, dtype=torch.int32) * 3
    return a_renderer().project(rows, view, sh_degree=3, keys=keys)


def assert_same_bits(one: Tensor, other: Tensor) -> None:
    assert torch.equal(
        one.detach().contiguous().view(torch.int32), other.contiguous().view(torch.int32)
    )


@pytest.mark.parametrize("sizes", [[250], [0, 250], [1, 0, 240, 0, 9], [0, 0]])
def test_segments_arrive_bit_by_bit(sizes: list[int]) -> None:
    splats = splats_of(a_view(), sum(sizes))
    with torch.no_grad():  # whatever a row that does not show holds
        splats.colors[::50] = torch.nan
        splats.means2d[::60] = -0.0
    sent = SplatRecords.room_for(sum(sizes), "cpu")
    a_renderer().records.write(splats, sent)
    parts, start = [], 0
    for size in sizes:
        parts.append(sent.part(range(start, start + size)))
        start += size
    words = torch.cat([part.words for part in parts])
    keys = torch.cat([part.keys for part in parts])
    arrived = SplatRecords(words, keys)
    assert arrived.n == sum(sizes)
    for name, place in FIELDS.items():
        assert_same_bits(getattr(splats, name), arrived.floats[:, place])
    assert torch.equal(splats.radii, arrived.words[:, REACH])
    assert torch.equal(splats.keys, arrived.keys[:, 0])


@pytest.mark.parametrize("n_rows", [0, 250])
def test_empty_records_draw_nothing_and_get_no_gradient(n_rows: int) -> None:
    view, renderer = a_view(), a_renderer(absgrad=True)
    splats = splats_of(view, n_rows)
    exact = SplatRecords.room_for(n_rows, "cpu")
    ample = SplatRecords.room_for(n_rows + 30, "cpu")
    ample.words.fill_(0x3F800000)  # what a buffer held before
    for room in (exact, ample):
        renderer.records.write(splats, room)
    assert (ample.keys[n_rows:] == NO_KEY).all()
    drawn = [renderer.records.draw(room, view, view.rect) for room in (exact, ample)]
    assert_same_bits(drawn[0].image, drawn[1].image)
    assert drawn[0].n_intersections == drawn[1].n_intersections
    gradient = torch.randn(drawn[0].image.shape, generator=torch.Generator().manual_seed(1))
    found = [renderer.records.send_back(one, gradient) for one in drawn]
    assert found[0].shape == (n_rows, 12)
    assert_same_bits(found[0], found[1][:n_rows])
    assert not found[1][n_rows:].any()
    image, _ = renderer.rasterize(splats)
    assert_same_bits(image, drawn[0].image)


def test_intersections_are_counted_by_column_of_tiles() -> None:
    view, renderer = a_view(), a_renderer()
    splats = splats_of(view)
    records = SplatRecords.room_for(250, "cpu")
    renderer.records.write(splats, records)
    drawn = renderer.records.draw(records, view, view.rect)
    counts = drawn.column_counts()
    assert counts.sum() == drawn.n_intersections
    shows = (splats.radii > 0).all(1)
    means, radii = splats.means2d[shows].detach(), splats.radii[shows]
    low = torch.floor((means - radii) / TILE).clamp_min(0)
    high = torch.ceil((means + radii) / TILE)
    end = -(-view.width // TILE), -(-view.height // TILE)
    rows = (high[:, 1].clamp_max(end[1]) - low[:, 1]).clamp_min(0)
    expected = [
        int(rows[(low[:, 0] <= column) & (high[:, 0] > column)].sum()) for column in range(end[0])
    ]
    assert counts.tolist() == expected
    assert np.count_nonzero(expected) > 5


def test_splats_that_cannot_travel_are_refused() -> None:
    view, records = a_view(), a_renderer().records
    splats = splats_of(view)
    with pytest.raises(ValueError, match="out must have room for 250 splats, got 249"):
        records.write(splats, SplatRecords.room_for(249, "cpu"))
    with pytest.raises(TypeError, match=r"splats must be float32 to travel, got torch.float64"):
        records.write(splats_of(view, dtype=torch.float64), SplatRecords.room_for(250, "cpu"))
    splats.keys = None
    with pytest.raises(ValueError, match="splats must have keys to travel, got keys=None"):
        records.write(splats, SplatRecords.room_for(250, "cpu"))
