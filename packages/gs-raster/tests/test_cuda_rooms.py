# SPDX-License-Identifier: Apache-2.0
"""Splats that are sorted with a room and waited for by nobody, and gradients that are told at once:
the bits of the stages that count first."""

from __future__ import annotations

from typing import Any

import pytest
import raster_oracle as oracle
import torch
from raster_device import DEVICE, assert_same_bits, bits, noise, sent, view_of
from torch import Tensor

import gs_raster
from gs_raster import Options, Rect, RoomCheck, RowGradients, Rows, Splats, Statistics, Workspace

pytestmark = pytest.mark.gpu
HOW: dict[str, Any] = {"sh_degree": 3, "options": Options(antialiased=True)}
N = 900
AMPLE = 100_000
RECTS = Rect(0, 0, 150, 101), Rect(37, 21, 140, 90)


def scene() -> tuple[Rows, gs_raster.View]:
    """Rows in pairs of equal depth."""
    view = oracle.random_view(70, width=150, height=101)
    values = sent(oracle.random_rows(70, view, n_rows=N))
    values["means"][1::2] = values["means"][::2]
    return Rows.of(values), view_of(view)


def splats_of(rows: Rows, view: gs_raster.View, n: int, *, has_keys: bool) -> Splats:
    """The first n rows; keys are against the order of rows."""
    keys = torch.arange(N, dtype=torch.int32, device=DEVICE).flip(0)[:n].contiguous()
    found = gs_raster.project(rows, view, radii=True, **HOW)
    return Splats(found.records[:n].contiguous(), view, keys if has_keys else None)


def drawn(splats: Splats, lists: gs_raster.TileLists, rect: Rect) -> list[Tensor]:
    pixels = gs_raster.blend(splats, lists)
    gradient = noise(rect.height, rect.width, 3)
    gradients = gs_raster.blend_backward(splats, lists, pixels, gradient, absgrad=True)
    return bits(lists.begins, pixels.image, pixels.alpha, gradients)


@pytest.mark.parametrize("has_keys", [False, True])
def test_lists_with_room_are_those_that_were_counted(has_keys: bool) -> None:
    rows, view = scene()
    check, workspace = RoomCheck(2, DEVICE), Workspace(holds_gradient=False)
    for _ in range(3):  # from graphs, the third time
        for n in (1, N - 1, N):
            for rect in RECTS:
                splats = splats_of(rows, view, n, has_keys=has_keys)
                counted = gs_raster.sort(splats, rect)
                expected = drawn(splats, counted, rect)
                for room in (max(counted.n_instances, 1), AMPLE):
                    for place in (None, workspace):
                        check.begin()
                        lists = gs_raster.sort(
                            splats, rect, room=room, check_room=check, index=1, workspace=place
                        )
                        assert_same_bits(drawn(splats, lists, rect), expected)
                        assert check.wait_for(1) == counted.n_instances
                        assert int(check.overflowed) == 0
                        used = slice(counted.n_instances)
                        assert torch.equal(lists.splats[used], counted.splats)


def test_too_little_room_lists_nothing_and_is_told() -> None:
    rows, view = scene()
    splats, check = splats_of(rows, view, N, has_keys=True), RoomCheck(1, DEVICE)
    count = gs_raster.sort(splats).n_instances
    for room in (0, count - 1):
        check.begin()
        lists = gs_raster.sort(splats, room=room, check_room=check)
        assert not lists.begins.any()
        assert not gs_raster.blend(splats, lists).image.any()
        assert check.wait_for(0) == count > room
        assert int(check.overflowed) == 1


def test_nothing_needs_no_room() -> None:
    rows, view = scene()
    lists = gs_raster.sort(splats_of(rows, view, 0, has_keys=False), room=10)
    assert lists.n_instances == 0
    assert not lists.begins.any()


def test_a_room_that_is_no_room_is_refused() -> None:
    rows, view = scene()
    splats, check = splats_of(rows, view, N, has_keys=False), RoomCheck(1, DEVICE)
    with pytest.raises(ValueError, match="room must be from 0 to 2147483647, got -1"):
        gs_raster.sort(splats, room=-1)
    with pytest.raises(ValueError, match="index must be from 0 to 0, got 1"):
        gs_raster.sort(splats, room=AMPLE, check_room=check, index=1)


def _statistics(absgrad: bool) -> Statistics:
    grad2d, count, extents = torch.zeros(3, N, device=DEVICE).unbind()
    return Statistics(grad2d, count, extents, (75.0, 50.5), absgrad)


@pytest.mark.parametrize("absgrad", [False, True])
def test_statistics_of_a_stage_are_those_of_one_call(absgrad: bool) -> None:
    rows, view = scene()
    of_image = noise(101, 150, 3)
    found = []
    for in_one_call in (False, True):
        statistics, out = _statistics(absgrad), RowGradients.empty(N, 15, DEVICE)
        for column in out.columns.values():
            column.zero_()
        if in_one_call:
            drawing = gs_raster.draw(rows, view, room=AMPLE, **HOW)
            gs_raster.draw_backward(
                drawing, of_image, out=out, absgrad=absgrad, statistics=statistics
            )
        else:
            splats = gs_raster.project(rows, view, radii=True, **HOW)
            lists = gs_raster.sort(splats)
            pixels = gs_raster.blend(splats, lists)
            gradients = gs_raster.blend_backward(splats, lists, pixels, of_image, absgrad=absgrad)
            gs_raster.project_backward(
                rows, view, splats, gradients, out=out, statistics=statistics, **HOW
            )
        told = statistics.grad2d, statistics.count, statistics.extents
        assert all(values.any() for values in told if values is not None)
        found.append(bits(*told, *out.columns.values()))
    assert_same_bits(*found)


def test_statistics_of_splats_without_radii_are_refused() -> None:
    rows, view = scene()
    splats = gs_raster.project(rows, view, **HOW)
    with pytest.raises(ValueError, match="splats must have radii for statistics, got radii=None"):
        gs_raster.project_backward(
            rows, view, splats, torch.zeros(N, 12, device=DEVICE),
            out=RowGradients.empty(N, 15, DEVICE), statistics=_statistics(False), **HOW,
        )  # fmt: skip
