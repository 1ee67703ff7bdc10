# SPDX-License-Identifier: Apache-2.0
"""Views that ranks draw together for looking at have the bits of one rank's."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from itertools import chain, zip_longest

import numpy as np
import pytest
import torch
from cloud import cloud_rows, views_along
from played_ranks import of_rank
from threads_as_ranks import ThreadWorld, on_ranks
from torch import Tensor

from gs_raster import types
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.ranks.pictures import sent_to_first
from gs_train.ranks.view_rounds import ViewRounds
from gs_train.renderers import RenderOptions, View, make_renderer
from gs_train.renderers.cpu import CpuRenderer
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.keys import RowKeys
from gs_train.rows.visible import render_view

N = 300
CPU = torch.device("cpu")
# Every row has a twin of another colour at its depth: keys alone decide which is in front.
ONCE = cloud_rows(N, 3)
ROWS = {
    name: torch.cat([values, values.flip(0) if name == "sh0" else values])
    for name, values in ONCE.items()
}
KEYS = torch.randperm(2 * N, generator=torch.Generator().manual_seed(5)).int()


def _away() -> View:
    (view,) = views_along(1)
    view.viewmat[2, 3] = -100.0
    return view


VIEWS = [*views_along(3), *views_along(2, 40, 72), _away(), *views_along(1)]


def _model(own: Tensor, device: torch.device = CPU) -> Gaussians:
    rows = {name: values[own] for name, values in ROWS.items()}
    keys = RowKeys(KEYS[own], 2 * N).to(device)
    return Gaussians(rows, device=device, make_optimizer=torch.optim.SGD, keys=keys)


def _on_one(views: Sequence[View]) -> list[Tensor]:
    model = _model(torch.arange(2 * N))
    return [render_view(model, view, CpuRenderer()) for view in views]


def _on_ranks(owners: Tensor, n_ranks: int, views: Sequence[View]) -> list[Tensor | None]:
    """Images in the order of views, and Nones where ranks were idle."""

    def images(world: ThreadWorld) -> list[Tensor | None]:
        model = _model((owners == world.rank).nonzero().squeeze(1))
        return list(ViewRounds(model, CpuRenderer(), world).images(views))

    rounds = zip_longest(*on_ranks(n_ranks, CPU, images))
    return list(chain.from_iterable(rounds))


def _assert_same(drawn: Sequence[Tensor | None], views: Sequence[View]) -> None:
    assert all(image is None for image in drawn[len(views) :])
    for image, expected in zip(drawn, _on_one(views), strict=False):
        assert image is not None
        assert not image.requires_grad
        assert torch.equal(image, expected)


@pytest.mark.parametrize("n_ranks", [2, 3, 9])
def test_ranks_draw_the_views_of_one(n_ranks: int) -> None:
    """Of several sizes, one of which shows nothing; 9 ranks are more than there are views."""
    owners = torch.randint(n_ranks, (2 * N,), generator=torch.Generator().manual_seed(n_ranks))
    drawn = _on_ranks(owners, n_ranks, VIEWS)
    assert len(drawn) == -(-len(VIEWS) // n_ranks) * n_ranks
    _assert_same(drawn, VIEWS)
    assert _on_one(VIEWS)[0].max() > 0.5
    assert not _on_one(VIEWS)[5].any()


@pytest.mark.gpu
def test_ranks_draw_the_views_of_one_on_a_gpu() -> None:
    """Threads share the device."""
    renderer = make_renderer("raster", RenderOptions())
    views = [view.to(renderer.device) for view in VIEWS]
    everything = torch.arange(2 * N)

    def images(world: ThreadWorld) -> list[Tensor | None]:
        model = _model(everything[world.rank :: 2], renderer.device)
        return list(ViewRounds(model, of_rank(renderer), world).images(views))

    drawn = list(chain.from_iterable(zip(*on_ranks(2, renderer.device, images), strict=True)))
    model = _model(everything, renderer.device)
    for image, view in zip(drawn, views, strict=False):
        assert image is not None
        assert torch.equal(image, render_view(model, view, renderer))


def test_a_rank_without_rows_draws_as_well() -> None:
    _assert_same(_on_ranks(torch.zeros(2 * N), 2, VIEWS), VIEWS)


def test_no_views_are_no_rounds() -> None:
    assert _on_ranks(torch.zeros(2 * N), 2, []) == []


def test_a_view_of_too_many_intersections_is_drawn_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = _on_one(VIEWS[:1])
    monkeypatch.setattr(types, "MAX_INSTANCES", 500)
    drawn = _on_ranks(torch.arange(2 * N) % 2, 2, VIEWS[:1])
    assert drawn[0] is not None
    assert torch.equal(drawn[0], expected[0])


def test_a_stop_of_one_rank_stops_all_after_the_same_round() -> None:
    def run(world: ThreadWorld) -> tuple[int, str, bool]:
        stop, seen = StopRequest(), []
        model = _model(torch.arange(2 * N)[world.rank :: 2])
        images = ViewRounds(model, CpuRenderer(), world, stop=stop).images(VIEWS * 3)

        def look() -> None:
            for image in images:
                seen.append(image)
                if world.rank == 1 and len(seen) == 2:
                    stop.signal_number = signal.SIGTERM

        with pytest.raises(Interrupted) as stopped:
            look()
        return len(seen), str(stopped.value), stopped.value.is_common

    first, second = on_ranks(2, CPU, run)
    assert first == second == (2, "stopped during rendering", True)


@pytest.mark.parametrize(
    "shapes", [[(3, 5), (4, 2), (1, 1)], [None, (4, 2), None], [(3, 5), None, (2, 2)], [None] * 3]
)
def test_pictures_of_ranks_reach_the_first_one(shapes: list[tuple[int, int] | None]) -> None:
    chance = np.random.default_rng(0)
    pictures = [
        None if shape is None else chance.integers(256, size=(*shape, 3), dtype=np.uint8)
        for shape in shapes
    ]
    found, *others = on_ranks(
        3, CPU, lambda world: sent_to_first(pictures[world.rank], shapes, world)
    )
    assert others == [[], []]
    expected = [picture for picture in pictures if picture is not None]
    assert [picture.tolist() for picture in found] == [picture.tolist() for picture in expected]


def test_a_picture_of_another_shape_is_refused() -> None:
    def run(world: ThreadWorld) -> str:
        with pytest.raises(ValueError, match="picture must be of the shape") as raised:
            sent_to_first(np.zeros((2, 2, 3), np.uint8), [(2, 3), None], world)
        return str(raised.value)

    assert on_ranks(2, CPU, run) == [
        "picture must be of the shape (2, 3), got (2, 2, 3)",
        "picture must be of the shape None, got (2, 2, 3)",
    ]
