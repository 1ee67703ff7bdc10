# SPDX-License-Identifier: Apache-2.0
"""Exposures of training photographs: gradients, mean, every preset, crops, resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cpu_tables import TableCpuRenderer
from one_thread import one_threaded
from photographed import (
    LIVELY,
    Photographed,
    masked_street,
    photo_config,
    render,
    renderer,
    rows_of,
    street,
    train,
)
from street import drive
from torch import Tensor

from gs_train.engine.background import Background
from gs_train.engine.drawn_loss import GivenPlanes, drawn_loss
from gs_train.engine.exposures import LAST_RATE, RATE, Exposures, rate_of
from gs_train.engine.settings import StepSettings
from gs_train.losses.exposure import exposed, gradient_by_exposure, gradient_by_image
from gs_train.losses.loss import Crop, photometric_loss
from gs_train.options.config_file import of_this_version
from gs_train.options.limits import Limits
from gs_train.options.presets import PRESETS
from gs_train.renderers import Rect, Renderer
from gs_train.rows.attributes import NAMES
from gs_train.runs.half_fit import right_half
from gs_train.runs.metrics import psnr
from gs_train.runs.trainer import Trainer

CPU = torch.device("cpu")
IDENTITY = torch.eye(3, 4)
BATCHES = drive(5, 3, n_views=12)[1:]


def trainer_of(
    scene: Photographed,
    preset: str = "none",
    *,
    draws: Renderer | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> Trainer:
    config = photo_config(**({"exposure": True, "resort_every": 0, "lr": LIVELY} | options))
    return Trainer(
        config,
        scene.rows,
        renderer=draws or renderer(),
        extent=scene.extent,
        preset=PRESETS[preset],
        limits=limits or Limits(),
        views=[view.name for view in scene.views],
    )


def run(
    preset: str = "none", batches: Sequence[Sequence[int]] = BATCHES, **how: Any
) -> tuple[dict[str, Tensor], Tensor, list[float]]:
    """Rows, exposures and losses of a run with masks and random backgrounds."""
    options = {"mask": "carve", "background": "random", "batch_size": len(batches[0])}
    scene = masked_street()
    trainer = trainer_of(scene, preset, **(options | how))
    losses = train(trainer, batches, scene=scene)
    assert trainer.exposures is not None
    values = trainer.exposures.tensors()["values"].clone()
    return rows_of(trainer), values, [loss.item() for loss in losses]


def test_gradients_of_an_exposed_image_are_those_of_autograd() -> None:
    draw = torch.Generator().manual_seed(0)
    image = torch.rand(11, 14, 3, generator=draw).requires_grad_()
    exposure = (IDENTITY + 0.2 * torch.randn(3, 4, generator=draw)).requires_grad_()
    upstream = torch.randn(11, 14, 3, generator=draw)
    expected = image @ exposure[:, :3].T + exposure[:, 3]
    torch.testing.assert_close(exposed(image.detach(), exposure.detach()), expected.detach())
    (expected * upstream).sum().backward()
    found = gradient_by_image(upstream, exposure.detach())
    torch.testing.assert_close(found, image.grad)
    found = gradient_by_exposure(upstream, image.detach())
    torch.testing.assert_close(found, exposure.grad)


def test_the_loss_of_a_drawing_has_the_gradients_of_autograd() -> None:
    draw = torch.Generator().manual_seed(1)
    view = street().views[0]
    crop = Crop(view, Rect(10, 4, 40, 30))
    h, w = crop.rect.height, crop.rect.width
    image = torch.rand(h, w, 3, generator=draw).requires_grad_()
    alpha = torch.rand(h, w, generator=draw).requires_grad_()
    truth = torch.randint(0, 256, (h, w, 3), generator=draw, dtype=torch.uint8)
    exposures = Exposures([view.name, "another"], CPU)
    start = IDENTITY + 0.1 * torch.randn(3, 4, generator=draw)
    exposures.of(view.name).copy_(start)
    start.requires_grad_()
    background = Background("random", 3, 5)
    settings = StepSettings(
        1, {}, (0.9, 0.999), 1e-15, 0.2, background=background, exposures=exposures
    )
    found = drawn_loss(image, GivenPlanes(alpha.detach()), truth, crop, settings, weight=0.5)
    seen = image + (1.0 - alpha)[..., None] * torch.tensor(background.colour(view.name))
    photometric_loss(seen @ start[:, :3].T + start[:, 3], truth, crop, 0.2, weight=0.5).backward()
    assert found.share.shape == (13,)
    torch.testing.assert_close(found.share[1:].view(3, 4), start.grad)
    torch.testing.assert_close(found.of_image, image.grad)
    torch.testing.assert_close(found.of_alpha, alpha.grad)


def test_updates_are_those_of_adam_less_their_mean() -> None:
    draw = torch.Generator().manual_seed(2)
    names = ["a", "b", "c", "d"]
    exposures = Exposures(names, CPU)
    leaf = IDENTITY.flatten().repeat(4, 1).requires_grad_()
    adam = torch.optim.Adam([leaf], lr=1e-2, betas=(0.9, 0.999), eps=1e-8)
    for step in range(6):
        gradients = torch.randn(3, 12, generator=draw)
        views = [("a", "c", "a"), ("b", "c", "d")][step % 2]
        exposures.take(views, gradients)
        leaf.grad = torch.zeros_like(leaf)
        for view, gradient in zip(views, gradients, strict=True):
            leaf.grad[names.index(view)] += gradient
        for view in set(views):
            row = names.index(view)
            leaf.grad[row] += 2e-3 / 3 * (leaf.detach()[row] - IDENTITY.flatten())
        exposures.update(rate=1e-2, betas=(0.9, 0.999), eps=1e-8, n_views=3, step=step)
        adam.step()
        with torch.no_grad():
            leaf -= leaf.mean(0) - IDENTITY.flatten()
        found = torch.stack([exposures.of(name) for name in names])
        torch.testing.assert_close(found, leaf.detach().view(4, 3, 4), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.mean(0), IDENTITY, rtol=0, atol=1e-6)


def test_the_rate_decays_by_one_factor_a_step() -> None:
    assert rate_of(0, 100) == RATE
    assert rate_of(100, 100) == rate_of(500, 100) == pytest.approx(LAST_RATE)
    assert rate_of(50, 100) == pytest.approx((RATE * LAST_RATE) ** 0.5)


@one_threaded
def test_best_and_renderers_of_tables_leave_the_bits_of_none() -> None:
    expected, exposures, losses = run()
    assert (exposures[BATCHES[0][0]] != IDENTITY.flatten()).any()
    for preset, draws in (
        ("best", None),
        ("none", TableCpuRenderer()),
        ("best", TableCpuRenderer()),
    ):
        rows, found, others = run(preset, draws=draws)
        assert others == losses
        assert torch.equal(found, exposures)
        for name in NAMES:
            assert torch.equal(rows[name], expected[name]), name


@pytest.mark.parametrize("preset", ["naive", "clm", "gs-scale"])
@one_threaded
def test_schedules_of_papers_train_exposures(preset: str) -> None:
    batches = [[view] for batch in BATCHES for view in batch][:6]
    _, exposures, losses = run(batches=batches)
    _, found, others = run(preset, batches)
    assert others == pytest.approx(losses, rel=1e-4)
    torch.testing.assert_close(found, exposures, rtol=0, atol=1e-3)


@one_threaded
def test_crops_add_to_the_exposure_of_their_view() -> None:
    batches = BATCHES[:1]
    _, exposures, (loss,) = run(batches=batches)
    _, found, (other,) = run("best", batches, limits=Limits(rows=150, residents=0))
    assert other == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(found, exposures, rtol=0, atol=1e-4)


@one_threaded
def test_a_run_goes_on_with_its_exposures() -> None:
    scene, batches = masked_street(), drive(6, 3, n_views=12)
    whole = trainer_of(scene, batch_size=3)
    losses = train(whole, batches, scene=scene)
    first = trainer_of(scene, batch_size=3)
    train(first, batches[:3], scene=scene)
    saved = {name: value.clone() for name, value in first.tensors().items()}
    again = Trainer.restore(
        first.config,
        saved,
        step=3,
        renderer=renderer(),
        extent=scene.extent,
        views=[view.name for view in scene.views],
    )
    assert [float(x) for x in train(again, batches, scene=scene)] == [float(x) for x in losses[3:]]
    for name, value in whole.tensors().items():
        assert torch.equal(again.tensors()[name], value), name


def test_what_does_not_fit_is_refused() -> None:
    scene = street()
    with pytest.raises(ValueError, match="views must name the training views"):
        Trainer(photo_config(exposure=True), scene.rows, renderer=renderer(), extent=1.0)
    few = Exposures(["a", "b"], CPU)
    with pytest.raises(ValueError, match=r"of 3 training views, got \(2, 12\)"):
        Exposures(["a", "b", "c"], CPU).load(few.tensors())
    with pytest.raises(ValueError, match="of 2 training views, got none"):
        few.load({})
    assert of_this_version({})["exposure"] is False


GAINS = (0.6, 1.3, 0.8, 1.4, 0.9, 1.0)


@one_threaded
def test_known_gains_are_found_again() -> None:
    """Photographs of the street with a gain each: exposures say which, up to one factor for all."""
    scene, views = street(), range(4, 10)
    photographs = list(scene.photographs)
    for view, gain in zip(views, GAINS, strict=True):
        photographs[view] = (photographs[view] * (gain * 0.7)).round().to(torch.uint8)
    batches = [[view] for _ in range(15) for view in views]
    trainer = Trainer(
        photo_config(exposure=True, resort_every=0, lr=LIVELY, steps=len(batches)),
        scene.rows,
        renderer=renderer(),
        extent=scene.extent,
        views=[scene.views[view].name for view in views],
    )
    spoilt = Photographed(scene.rows, scene.views, photographs, scene.extent)
    train(trainer, batches, scene=spoilt)
    assert trainer.exposures is not None
    grey = torch.full((1, 1, 3), 0.5)
    found = [exposed(grey, trainer.exposures.of(scene.views[view].name)).mean() for view in views]
    rows_of(trainer)
    relation = torch.corrcoef(torch.stack([torch.stack(found), torch.tensor(GAINS)]))[0, 1]
    assert relation > 0.95


@one_threaded
def test_exposures_gain_a_decibel_where_gains_and_offsets_differ() -> None:
    """Of right halves of views that were not trained on, with colours fitted on their left halves.

    Other draws of gains, offsets and orders gain 1.7 to 2.1.
    """
    draw, scene = np.random.default_rng(0), street()
    photographs = [
        (photograph * draw.uniform(0.4, 1.1) + 255 * draw.uniform(-0.1, 0.2)).clamp(0, 255)
        for photograph in scene.photographs
    ]
    spoilt = replace(scene, photographs=[pixels.round().byte() for pixels in photographs])
    held_out = (9, 12, 15, 18)
    views = [view for view in range(4, 24) if view not in held_out]
    batches = [[int(view)] for _ in range(15) for view in draw.permutation(views)]
    found = {}
    for exposure in (False, True):
        trainer = Trainer(
            photo_config(exposure=exposure, resort_every=0, lr=LIVELY, steps=len(batches)),
            scene.rows,
            renderer=renderer(),
            extent=scene.extent,
            views=[scene.views[view].name for view in views],
        )
        train(trainer, batches, scene=spoilt)
        rows, scores = rows_of(trainer), []
        for view in held_out:
            half = right_half(render(rows, scene.views[view]), spoilt.photographs[view] / 255.0)
            assert half is not None
            scores.append(float(psnr(half.image, half.truth)))
        found[exposure] = float(np.mean(scores))
    assert found[True] > found[False] + 1.0


@pytest.mark.gpu
@pytest.mark.parametrize("preset", ["none", "best", "clm"])
@pytest.mark.parametrize("drawn_by", ["raster", "gsplat"])
@one_threaded
def test_on_a_gpu_the_first_steps_are_those_of_the_cpu(preset: str, drawn_by: str) -> None:
    _, exposures, losses = run(batches=BATCHES[:3])
    _, found, others = run(preset, BATCHES[:3], draws=renderer(drawn_by))
    assert others == pytest.approx(losses, rel=2e-3)
    apart = (found.cpu() - exposures).abs()
    assert (apart < 2e-3).float().mean() > 0.97  # Adam's first steps are as long for any gradient
