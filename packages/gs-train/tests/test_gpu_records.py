# SPDX-License-Identifier: Apache-2.0
"""Rows in tables of two ranks, drawn by one of them: the bits of rows in the tables of one."""

from __future__ import annotations

import pytest
import torch
from random_scenes import random_rows, random_view
from torch import Tensor

from gs_train.densify.statistics import Statistics
from gs_train.renderers import RenderOptions, View, make_renderer
from gs_train.renderers.raster import RasterRenderer
from gs_train.renderers.records import GRADIENT_WORDS, TILE, Outgoing, SplatRecords
from gs_train.renderers.tables import Direct, TableRows
from gs_train.rows.attributes import APPEARANCE, GEOMETRY

pytestmark = pytest.mark.gpu

N_ROWS, SPARE = 900, 25


class Tables:
    """Rows whose harmonics lie in another order than their geometry, in a wider table."""

    def __init__(self, rows: dict[str, Tensor], device: torch.device) -> None:
        self.order = torch.randperm(N_ROWS, generator=torch.Generator().manual_seed(4)).to(device)
        self.columns = {name: rows[name].to(device).contiguous() for name in GEOMETRY}
        wide = torch.zeros(N_ROWS, 60, device=device)
        appearance = torch.cat([rows[name].flatten(1) for name in APPEARANCE], 1).to(device)
        wide[self.order, :48] = appearance
        self.columns["sh0"] = wide[:, :3].unflatten(1, (1, 3))
        self.columns["shN"] = wide[:, 3:48].unflatten(1, (15, 3))
        self.keys = torch.arange(N_ROWS, dtype=torch.int32, device=device).flip(0).contiguous()

    def part(self, ids: Tensor, place: Tensor | None, n_sums: int) -> TableRows:
        """Rows of a view, with sums of their own."""
        sums = {
            name: torch.zeros(n_sums, *values.shape[1:], device=values.device)
            for name, values in self.columns.items()
        }
        slots = self.order[ids].int()
        return TableRows(self.columns, ids.int(), slots, self.keys, sums, place)


def the_view(device: torch.device) -> View:
    view = random_view(5, width=150, height=101)
    return View("one", view.viewmat.float(), view.K.float(), 150, 101).to(device)


@pytest.mark.parametrize("room", [None, 2**20])
@pytest.mark.parametrize("absgrad", [False, True])
def test_records_from_tables_leave_the_bits_of_one_call(absgrad: bool, room: int | None) -> None:
    renderer = make_renderer("raster", RenderOptions(), absgrad=absgrad)
    assert isinstance(renderer, RasterRenderer)
    device, view = renderer.device, the_view(renderer.device)
    rows = {k: v.float() for k, v in random_rows(5, view.to("cpu"), n_rows=N_ROWS).items()}
    rows["means"][1::2] = rows["means"][::2]  # equal depths on both ranks
    tables = Tables(rows, device)
    every = torch.arange(N_ROWS, device=device)
    draw = torch.Generator().manual_seed(2)
    gradient = torch.randn(view.height, view.width, 3, generator=draw).to(device)

    whole = tables.part(every, None, N_ROWS)
    renderer.tables.begin(1)
    expected = renderer.tables.draw(whole, view, view.rect, sh_degree=3, room=2**20, index=0)
    told = renderer.tables.send_back(expected, gradient, None)
    assert told is not None
    assert told.means2d.grad is not None

    records = renderer.records
    own = [every[every % 2 == rank] for rank in range(2)]
    parts = [tables.part(ids, every[: len(ids)], len(ids) + 7) for ids in own]
    inbox = SplatRecords.room_for(N_ROWS + 2 * SPARE, device)
    inbox.words.fill_(0x3F800000)
    size = inbox.n // 2
    segments = [range(size), range(size, 2 * size)]
    projected = [
        records.project_views([Outgoing(part, view, segment)], inbox, sh_degree=3)
        for part, segment in zip(parts, segments)
    ]
    if room is not None:
        short = records.draw(inbox, view, view.rect, room=1000)
        assert short.n_intersections > 1000
        assert not short.image.any()
    drawn = records.draw(inbox, view, view.rect, room=room)
    assert torch.equal(drawn.image, expected.image)
    assert drawn.n_intersections == renderer.tables.n_intersections(0) > 1000
    counts = drawn.column_counts()
    assert len(counts) == -(-view.width // TILE)
    assert counts.sum() == drawn.n_intersections
    sent = records.send_back(drawn, gradient)
    assert sent.shape == (inbox.n, GRADIENT_WORDS)
    for ids, part, one in zip(own, parts, projected):
        told_of = records.project_views_backward(one, sent)
        assert told_of is not None
        (splats,) = told_of
        for name, sums in part.sums.items():
            assert torch.equal(sums[: len(ids)], whole.sums[name][ids]), name
            assert not sums[len(ids) :].any()
        assert torch.equal(splats.radii, told.radii[ids])
        assert splats.means2d.grad is not None
        assert torch.equal(splats.means2d.grad, told.means2d.grad[ids])
        if absgrad:
            assert torch.equal(splats.absgrad, told.absgrad[ids])


@pytest.mark.parametrize("absgrad", [False, True])
def test_density_control_takes_views_of_records_without_splats(absgrad: bool) -> None:
    renderer = make_renderer("raster", RenderOptions(), absgrad=absgrad)
    assert isinstance(renderer, RasterRenderer)
    device, records = renderer.device, renderer.records
    view = the_view(device)
    rows = {k: v.float() for k, v in random_rows(5, view.to("cpu"), n_rows=N_ROWS).items()}
    tables, every = Tables(rows, device), torch.arange(N_ROWS, device=device)
    gradients = torch.randn(N_ROWS, GRADIENT_WORDS, device=device)
    found = []
    for is_direct in (False, True):
        sums = Statistics(N_ROWS, device=device, absgrad=absgrad, radii=True)
        part, out = tables.part(every, None, N_ROWS), SplatRecords.room_for(N_ROWS, device)
        one = records.project_views([Outgoing(part, view, range(N_ROWS))], out, sh_degree=3)
        splats = records.project_views_backward(
            one, gradients, direct=Direct(sums, 3) if is_direct else None
        )
        assert (splats is None) == is_direct
        if splats is not None:
            sums.observe(every.int(), splats[0], batch_size=3)
        assert sums.grad2d.any()
        found.append([*sums.tensors().values(), *part.sums.values()])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))


def test_no_records_draw_a_black_image() -> None:
    renderer = make_renderer("raster", RenderOptions())
    assert isinstance(renderer, RasterRenderer)
    view = the_view(renderer.device)
    nothing = SplatRecords.room_for(0, renderer.device)
    drawn = renderer.records.draw(nothing, view, view.rect)
    assert not drawn.image.any()
    assert renderer.records.send_back(drawn, torch.ones_like(drawn.image)).shape == (
        0,
        GRADIENT_WORDS,
    )
