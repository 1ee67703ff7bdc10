# SPDX-License-Identifier: Apache-2.0
"""Rows of several views in one call each way, and splats that are drawn in one: the bits of the
stages."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import raster_oracle as oracle
import torch
from raster_device import DEVICE, assert_same_bits, bits, noise, sent, view_of
from torch import Tensor

import gs_raster
from gs_raster import (
    Options,
    Rect,
    RoomCheck,
    RowGradients,
    Rows,
    Splats,
    Statistics,
    ViewRows,
    Workspace,
)

pytestmark = pytest.mark.gpu
HOW: dict[str, Any] = {"sh_degree": 3, "options": Options(antialiased=True)}
N, SPARE, AMPLE = 900, 40, 200_000
SEEN = (N, 0, 333, 1, 500, 17, 256, 128, 90, 700)
"""Rows of each view: more views than one launch takes."""


def tables() -> tuple[dict[str, Tensor], Tensor]:
    """Rows in pairs of equal depth, and their keys, which run against them."""
    values = sent(oracle.random_rows(70, oracle.random_view(70, width=150, height=101), n_rows=N))
    values["means"][1::2] = values["means"][::2]
    return values, torch.arange(N, dtype=torch.int32, device=DEVICE).flip(0).contiguous()


def views() -> list[gs_raster.View]:
    return [view_of(oracle.random_view(70 + k, width=150, height=101)) for k in range(len(SEEN))]


def slots_of(n: int) -> Tensor:
    chance = torch.Generator().manual_seed(n)
    return torch.randperm(N, generator=chance)[:n].sort().values.int().to(DEVICE)


def outgoing(values: dict[str, Tensor], spare: int) -> list[ViewRows]:
    """Views whose segments lie one behind the other."""
    ends = list(itertools.accumulate(n + spare for n in SEEN))
    return [
        ViewRows(Rows.of(values, slots=slots_of(n)), view, range(end - n - spare, end))
        for n, view, end in zip(SEEN, views(), ends)
    ]


def outbox(n: int) -> dict[str, Tensor]:
    """Records, whose memory holds other numbers before."""
    return {
        "records": torch.full((n, 12), 7, dtype=torch.int32, device=DEVICE),
        "record_keys": torch.full((n,), 7, dtype=torch.int32, device=DEVICE),
    }


@pytest.mark.parametrize("spare", [0, SPARE])
def test_views_together_are_those_of_one_call_each(spare: int) -> None:
    values, keys = tables()
    given = outgoing(values, spare)
    out = outbox(given[-1].segment.stop)
    found = gs_raster.project_views(given, keys, **out, radii=True, **HOW)
    shown = 0
    for k, (rows, view, segment) in enumerate(given):
        own = slice(segment.start, segment.stop)
        records, to_keys = out["records"][own], out["record_keys"][own]
        expected = gs_raster.project(rows, view, radii=True, **HOW)
        assert torch.equal(records[: rows.n], expected.records)
        assert not records[rows.n :].any()
        assert rows.slots is not None
        assert torch.equal(to_keys[: rows.n], keys[rows.slots.long()])
        assert to_keys[rows.n :].eq(-1).all()
        splats = found.splats(k)
        assert splats.radii is not None
        assert expected.radii is not None
        assert torch.equal(splats.radii, expected.radii)
        shown += int(splats.shows.sum())
    assert shown > N // 2


def statistics_of(k: int) -> Statistics:
    grad2d, count, extents = torch.zeros(3, N, device=DEVICE).unbind()
    return Statistics(grad2d, count, extents, (75.0 + k, 50.5), absgrad=False)


def test_gradients_of_views_together_are_those_of_one_call_each() -> None:
    values, keys = tables()
    given = outgoing(values, SPARE)
    n = given[-1].segment.stop
    projected = gs_raster.project_views(given, keys, **outbox(n), radii=True, **HOW)
    gradients = noise(n, 12)
    places = [None if n == N else slots_of(n).flip(0).contiguous() for n in SEEN]
    found = []
    for together in (True, False):
        out = RowGradients.empty(N, 15, DEVICE)
        for column in out.columns.values():
            column.zero_()
        told = [statistics_of(k) if k % 2 == 0 else None for k in range(len(SEEN))]
        if together:
            gs_raster.project_views_backward(
                projected, gradients, out=out, places=places, statistics=told
            )
        else:
            for k, (rows, view, segment) in enumerate(given):
                own = gradients[segment.start :][: rows.n].contiguous()
                gs_raster.project_backward(
                    rows, view, projected.splats(k), own, out=out, places=places[k],
                    statistics=told[k], **HOW,
                )  # fmt: skip
        sums = [one.grad2d for one in told if one is not None]
        assert sums[0].any()
        found.append(bits(*out.columns.values(), *sums))
    assert_same_bits(*found)


def test_views_that_do_not_go_together_are_refused() -> None:
    values, keys = tables()
    given = outgoing(values, 0)
    out = outbox(given[-1].segment.stop)
    with pytest.raises(ValueError, match="views must be at least one, got none"):
        gs_raster.project_views([], keys, **out, **HOW)
    for segment, error, text in (
        (range(1, N), ValueError, f"segment must have room for {N} splats, got {N - 1}"),
        (range(-1, N), ValueError, "segment must lie in the"),
        (range(1, len(out["records"]) + 1), ValueError, "segment must lie in the"),
        (range(0, 2 * N, 2), ValueError, "segment must lie in the"),
        (slice(0, N), TypeError, "segment must be a range, got slice"),
    ):
        with pytest.raises(error, match=text):
            gs_raster.project_views([given[0]._replace(segment=segment)], keys, **out, **HOW)
    short = out | {"record_keys": out["record_keys"][1:]}
    with pytest.raises(ValueError, match=r"record_keys must have shape"):
        gs_raster.project_views(given, keys, **short, **HOW)
    other = {name: column[1:] for name, column in values.items()}
    moved = given[1]._replace(rows=Rows.of(other, slots=slots_of(0)))
    with pytest.raises(ValueError, match=r"rows of all views must be in the same tables of 900"):
        gs_raster.project_views([given[0], moved], keys, **out, **HOW)
    projected = gs_raster.project_views(given[:1], keys, **outbox(N), **HOW)
    sums, back = RowGradients.empty(N, 15, DEVICE), noise(N, 12)
    with pytest.raises(ValueError, match=r"gradients must have shape \(900, 12\)"):
        gs_raster.project_views_backward(
            projected, back[1:], out=sums, places=[None], statistics=[None]
        )
    with pytest.raises(ValueError, match="places must be 1, one a view, got 0"):
        gs_raster.project_views_backward(projected, back, out=sums, places=[], statistics=[None])
    with pytest.raises(ValueError, match="views must have radii for statistics"):
        gs_raster.project_views_backward(
            projected, back, out=sums, places=[None], statistics=[statistics_of(0)]
        )


@pytest.mark.parametrize("absgrad", [False, True])
@pytest.mark.parametrize("has_workspace", [False, True])
@pytest.mark.parametrize("has_depth", [False, True])
def test_splats_in_one_call_are_those_of_the_stages(
    has_depth: bool, has_workspace: bool, absgrad: bool
) -> None:
    values, keys = tables()
    view = views()[0]
    records = gs_raster.project(Rows.of(values), view, **HOW).records
    background = torch.tensor([0.2, 0.5, 0.9], device=DEVICE)
    workspace = Workspace() if has_workspace else None
    check = RoomCheck(1, DEVICE)
    for rect in (Rect(0, 0, 150, 101), Rect(37, 21, 140, 90), Rect(5, 5, 5, 9)):
        for n in (N, 3, 0):
            splats = Splats(records[:n].contiguous(), view, keys[:n].contiguous())
            lists = gs_raster.sort(splats, rect)
            pixels = gs_raster.blend(splats, lists, background=background, depth=has_depth)
            of_image, of_alpha = noise(rect.height, rect.width, 3), noise(rect.height, rect.width)
            of_depth = noise(rect.height, rect.width) if has_depth else None
            expected = gs_raster.blend_backward(
                splats, lists, pixels, of_image, of_alpha, of_depth, background=background,
                absgrad=absgrad,
            )  # fmt: skip
            check.begin()
            drawing = gs_raster.draw_splats(
                splats, rect, room=AMPLE, background=background, depth=has_depth,
                check_room=check, workspace=workspace, absgrad=absgrad,
            )  # fmt: skip
            assert torch.equal(drawing.image, pixels.image)
            assert torch.equal(drawing.alpha, 1.0 - pixels.transmittance)
            assert torch.equal(drawing.begins, lists.begins)
            if has_depth:
                assert drawing.depth is not None
                assert pixels.depth is not None
                assert torch.equal(drawing.depth, pixels.depth)
            assert check.wait_for(0) == lists.n_instances
            found = gs_raster.draw_splats_backward(
                drawing, of_image, of_alpha, of_depth, absgrad=absgrad
            )
            assert_same_bits(bits(found), bits(expected))
            assert bool(found.any()) == bool(lists.n_instances)


def test_splats_without_room_are_told_and_leave_nothing() -> None:
    values, keys = tables()
    view, check = views()[0], RoomCheck(1, DEVICE)
    splats = Splats(gs_raster.project(Rows.of(values), view, **HOW).records, view, keys)
    count = gs_raster.sort(splats).n_instances
    for room in (0, count - 1):
        check.begin()
        drawing = gs_raster.draw_splats(splats, room=room, check_room=check)
        assert not drawing.image.any()
        assert check.wait_for(0) == count > room
        assert not gs_raster.draw_splats_backward(drawing, noise(101, 150, 3)).any()


def test_an_earlier_drawing_of_a_workspace_is_refused() -> None:
    values, keys = tables()
    view, workspace = views()[0], Workspace()
    splats = Splats(gs_raster.project(Rows.of(values), view, **HOW).records, view, keys)
    first = gs_raster.draw_splats(splats, room=AMPLE, workspace=workspace)
    with pytest.raises(ValueError, match="grad_image must have memory of its own"):
        gs_raster.draw_splats_backward(first, first.image)
    gs_raster.draw_splats(splats, room=AMPLE, workspace=workspace)
    with pytest.raises(RuntimeError, match="drawing must be the last one of its workspace"):
        gs_raster.draw_splats_backward(first, noise(101, 150, 3))
