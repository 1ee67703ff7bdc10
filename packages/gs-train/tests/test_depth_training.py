# SPDX-License-Identifier: Apache-2.0
"""Training on photographs with depth maps: through every preset, crop and renderer; and what the
maps are good for."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from cpu_tables import TableCpuRenderer
from one_thread import one_threaded
from photo_runs import BATCHES, assert_crops_see_their_part, assert_same_rows
from photo_runs import run as run_with
from photographed import (
    LIVELY,
    Photographed,
    deep_street,
    inverse_depth,
    renderer,
)
from torch import Tensor

from gs_train.errors import InputError
from gs_train.losses.channels import DEPTH_BYTES, has_depth
from gs_train.losses.depth import depth_bytes, given_inverse
from gs_train.losses.mask import KEPT, has_mask
from gs_train.options.presets import PRESETS
from gs_train.renderers import DepthMeaning, InverseDepth, MetricDepth, View

WEIGHT = "2:0.5"
OF = InverseDepth(0.6, 0.02)


def run(
    scene: Photographed, preset: str = "none", **options: Any
) -> tuple[dict[str, Tensor], list[float], int]:
    """Rows, losses and number of microbatches of a run that compares with maps."""
    return run_with(scene, preset, **{"depth_weight": WEIGHT, **options})


def without_maps(scene: Photographed) -> Photographed:
    """The same photographs and views alone."""
    photographs = [
        photograph[..., :-DEPTH_BYTES].contiguous() if has_depth(photograph) else photograph
        for photograph in scene.photographs
    ]
    views = [dataclasses.replace(view, inverse_depth=None) for view in scene.views]
    return dataclasses.replace(scene, views=views, photographs=photographs)


@pytest.mark.parametrize("preset", PRESETS)
@one_threaded
def test_every_preset_compares_with_the_maps(preset: str) -> None:
    """Losses are those of `none` but for rounding, which moves rows apart later."""
    _, expected, _ = run(deep_street(), batches=BATCHES[:3])
    rows, losses, _ = run(deep_street(), preset, batches=BATCHES[:3])
    blind, without, _ = run(without_maps(deep_street()), preset, batches=BATCHES[:3])
    assert losses == pytest.approx(expected, rel=1e-4)
    assert all(ours > theirs for ours, theirs in zip(losses, without))
    assert not torch.equal(rows["means"], blind["means"])


@pytest.mark.parametrize("preset", ["none", "best", "clm"])
@one_threaded
def test_without_the_option_maps_change_no_bit(preset: str) -> None:
    expected, losses, _ = run(without_maps(deep_street()), preset, depth_weight=None)
    rows, found, _ = run(deep_street(), preset, depth_weight=None)
    assert found == losses
    assert_same_rows(rows, expected)


@one_threaded
def test_best_tables_and_a_run_that_goes_on_leave_the_bits_of_none() -> None:
    expected, losses, _ = run(deep_street())
    for preset, draws, stops in (
        ("best", None, False),
        ("none", TableCpuRenderer(), False),
        ("best", TableCpuRenderer(), False),
        ("none", None, True),
        ("best", None, True),
    ):
        rows, found, _ = run(deep_street(), preset, draws=draws, stops=stops)
        assert found == losses
        assert_same_rows(rows, expected)


@pytest.mark.parametrize("preset", ["gs-scale", "best"])
@one_threaded
def test_crops_see_the_maps_of_their_view(preset: str) -> None:
    assert_crops_see_their_part(deep_street(), preset, depth_weight=WEIGHT)


@one_threaded
def test_no_bit_depends_on_depths_of_hidden_pixels() -> None:
    scene, other = deep_street(), []
    for photograph in scene.photographs:
        changed = photograph.clone()
        if has_depth(photograph) and has_mask(photograph):
            changed[..., 4:][changed[..., 3] != KEPT] = 99
        other.append(changed)
    expected, losses, _ = run(scene)
    rows, found, _ = run(dataclasses.replace(scene, photographs=other))
    assert found == losses
    assert_same_rows(rows, expected)


@one_threaded
def test_the_weight_falls_from_start_to_end_over_the_images() -> None:
    scene, k = deep_street(), 4
    hidden = torch.cat([scene.photographs[k][..., :3], scene.photographs[k][..., -2:]], 2)
    scene = dataclasses.replace(
        scene, views=[scene.views[k]], photographs=[hidden], rows=scene.rows
    )
    lr = type(LIVELY)(means=0, scales=0, quats=0, opacities=0, sh0=0, shN=0)  # nothing moves
    told: dict[str | None, list[float]] = {}
    for weight in (None, "8:0.5", "1:1"):
        _, told[weight], _ = run(
            scene, batches=[[0]] * 5, depth_weight=weight, lr=lr, steps=4, mask="off"
        )
    colours = told[None][0]
    depth = told["1:1"][0] - colours
    assert depth > 1e-3
    weights = [(loss - colours) / depth for loss in told["8:0.5"]]
    assert weights == pytest.approx([8.0, 4.0, 2.0, 1.0, 0.5], rel=1e-3)


class WithoutDepths:
    """A caller's renderer from before there were depths."""

    def __init__(self) -> None:
        for name in ("name", "device", "options", "blends_by_key", "project", "rasterize"):
            setattr(self, name, getattr(renderer(), name))


def test_a_renderer_without_depths_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="--depth-weight needs a renderer with rasterize_with_d"):
        run(deep_street(), draws=WithoutDepths())  # type: ignore[arg-type]
    assert run(deep_street(), draws=WithoutDepths(), batches=BATCHES[:1], depth_weight=None)  # type: ignore[arg-type]


# ------------------------------------------------------------------- a wall without texture


def wall(of: DepthMeaning = OF) -> Photographed:
    """A grey wall, askew, that fills four views, and a cloud of Gaussians before and behind the
    wall. Photographs say nothing of where the wall is. Metric maps do not know a fifth of it."""
    draw = torch.Generator().manual_seed(1)
    n, width, height = 400, 36, 24
    K = torch.tensor([[33.0, 0, width / 2], [0, 33.0, height / 2], [0, 0, 1]])
    views, photographs = [], []
    for i in range(4):
        x = 0.5 * (i % 2) - 0.25
        viewmat = torch.eye(4)
        viewmat[:2, 3] = -torch.tensor([x, 0.5 * (i // 2) - 0.25])
        # The wall is where z = 3 + x / 2.
        u = (torch.arange(width) + 0.5 - width / 2) / 33.0
        inverse = ((1 - u / 2) / (3 + x / 2)).expand(height, width)
        if isinstance(of, MetricDepth):
            values = (1 / inverse / of.unit).round()
            values = values.where(torch.rand(height, width, generator=draw) > 0.2, 0.0)
        else:
            values = ((inverse - of.offset) / of.scale * 65536).round()
        two = torch.from_numpy(depth_bytes(values.numpy().astype(np.uint16)))
        grey = torch.full((height, width, 3), 128, dtype=torch.uint8)
        photographs.append(torch.cat([grey, two], 2))
        views.append(View(f"wall {i}", viewmat, K, width, height, of))
    z = 1.8 + 2.4 * torch.rand(n, generator=draw)
    across = (2 * torch.rand(n, 2, generator=draw) - 1) * torch.tensor([0.75, 0.55])
    rows = {
        "means": torch.cat([across * z[:, None], z[:, None]], 1),
        "scales": torch.full((n, 3), -2.3),
        "quats": torch.tensor([1.0, 0, 0, 0]).repeat(n, 1),
        "opacities": torch.zeros(n),
        "sh0": torch.zeros(n, 1, 3),
        "shN": torch.zeros(n, 3, 3),
    }
    return Photographed(rows, views, photographs, 1.0)


def depth_error(rows: dict[str, Tensor], scene: Photographed) -> float:
    """Mean difference of inverse depths, where the views are opaque."""
    errors = []
    for view, photograph in zip(scene.views, scene.photographs):
        assert view.inverse_depth is not None
        given = given_inverse(photograph, view.inverse_depth, torch.float32)
        known = given.isfinite()
        errors.append((inverse_depth(rows, view) - given)[known].abs().mean())
    return float(torch.stack(errors).mean())


@one_threaded
def test_maps_put_a_wall_without_texture_where_it_is_and_colours_alone_do_not() -> None:
    scene = wall()
    batches = [[0, 1, 2, 3]] * 80
    lr = dataclasses.replace(LIVELY, means=1e-2)
    found = {}
    for weight in ("1:0.1", None):
        options: dict[str, Any] = {"depth_weight": weight, "lr": lr, "steps": 80, "batch_size": 4}
        rows, losses, _ = run(scene, batches=batches, mask="off", **options)
        found[weight] = depth_error(rows, scene)
        if weight is None:
            assert losses[-1] < 0.2 * losses[0]  # the views look right
    before = depth_error(scene.rows, scene)
    assert found["1:0.1"] < 0.1 * before
    assert found[None] > 0.3 * before


@one_threaded
def test_metric_maps_with_holes_put_it_there_too() -> None:
    scene = wall(MetricDepth(1e-3))
    lr = dataclasses.replace(LIVELY, means=1e-2)
    options: dict[str, Any] = {"lr": lr, "steps": 80, "batch_size": 4, "mask": "off"}
    rows, _, _ = run(scene, batches=[[0, 1, 2, 3]] * 80, depth_weight="1:0.1", **options)
    assert depth_error(rows, scene) < 0.1 * depth_error(scene.rows, scene)


# ------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("drawn_by", ["raster", "gsplat"])
@pytest.mark.parametrize("preset", ["none", "best", "clm"])
@one_threaded
def test_on_a_gpu_maps_are_compared_with_as_on_the_cpu(preset: str, drawn_by: str) -> None:
    """Losses of a few steps: rows that Adam has moved apart by rounding do so later."""
    _, expected, _ = run(deep_street(), preset)
    _, found, _ = run(deep_street().on("cuda"), preset, draws=renderer(drawn_by))
    assert found == pytest.approx(expected, rel=2e-3, abs=1e-6)


@pytest.mark.gpu
@one_threaded
def test_on_a_gpu_best_and_a_run_that_goes_on_leave_the_same_bits() -> None:
    draws = renderer("raster")
    expected, losses, _ = run(deep_street().on("cuda"), draws=draws)
    for preset, stops in (("none", True), ("best", False), ("best", True)):
        rows, found, _ = run(deep_street().on("cuda"), preset, draws=draws, stops=stops)
        assert found == losses
        assert_same_rows(rows, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("drawn_by", ["raster", "gsplat"])
@one_threaded
def test_on_a_gpu_maps_put_the_wall_where_it_is(drawn_by: str) -> None:
    scene, draws = wall(), renderer(drawn_by)
    lr = dataclasses.replace(LIVELY, means=1e-2)
    options: dict[str, Any] = {"depth_weight": "1:0.1", "lr": lr, "steps": 80, "batch_size": 4}
    batches = [[0, 1, 2, 3]] * 80
    rows, _, _ = run(scene.on("cuda"), batches=batches, mask="off", draws=draws, **options)
    assert depth_error(rows, scene) < 0.1 * depth_error(scene.rows, scene)
