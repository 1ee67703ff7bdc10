# SPDX-License-Identifier: Apache-2.0
"""Colours behind the scene: of training in every preset and crop, of photographs, of scores."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cpu_tables import TableCpuRenderer
from one_thread import one_threaded
from photographed import LIVELY, masked_street, photo_config, renderer, rows_of, street, train
from PIL import Image
from small_captures import PINHOLE, write_capture
from street import drive
from torch import Tensor

from gs_train.data import load_capture, read_image
from gs_train.engine.background import Background, colour_of_scores
from gs_train.engine.drawn_loss import GivenPlanes, drawn_loss
from gs_train.engine.settings import StepSettings
from gs_train.errors import InputError
from gs_train.losses.background import BLACK, WHITE, gradient_by_alpha, over
from gs_train.losses.loss import Crop, photometric_loss
from gs_train.losses.mask import CARVED, KEPT
from gs_train.options.config import FitConfig
from gs_train.options.config_file import of_this_version
from gs_train.options.limits import Limits
from gs_train.options.presets import PRESETS
from gs_train.renderers import Rect, Renderer
from gs_train.rows.attributes import NAMES
from gs_train.rows.counter_random import Purpose, uniform
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.visible import render_view
from gs_train.runs.trainer import Trainer

BATCHES = drive(5, 1, n_views=12)[1:]


def run(
    background: str,
    preset: str = "none",
    *,
    draws: Renderer | None = None,
    limits: Limits | None = None,
    batches: Sequence[Sequence[int]] = BATCHES,
    **options: Any,
) -> tuple[dict[str, Tensor], list[float]]:
    """Rows and losses of a run along the masked street."""
    config = photo_config(background=background, mask="carve", resort_every=0, lr=LIVELY, **options)
    scene = masked_street()
    trainer = Trainer(
        config,
        scene.rows,
        renderer=draws or renderer(),
        extent=scene.extent,
        preset=PRESETS[preset],
        limits=limits or Limits(),
    )
    losses = train(trainer, batches, scene=scene)
    return rows_of(trainer), [loss.item() for loss in losses]


def test_a_random_colour_is_that_of_seed_step_and_view() -> None:
    found = Background("random", 7, 3).colour("a.jpg")
    assert found == Background("random", 7, 3).colour("a.jpg")
    others = [("random", 8, 3, "a.jpg"), ("random", 7, 4, "a.jpg"), ("random", 7, 3, "b.jpg")]
    for kind, seed, step, view in others:
        assert Background(kind, seed, step).colour(view) != found  # type: ignore[arg-type]
    row = torch.tensor([zlib.crc32(b"a.jpg")])
    assert found == tuple(uniform(7, Purpose.BACKGROUND, 3, row, 3)[0].tolist())


def test_scores_are_over_black_unless_the_run_is_over_white() -> None:
    assert colour_of_scores("white") == WHITE
    assert colour_of_scores("random") == colour_of_scores("black") == BLACK


def test_an_image_over_a_colour_has_the_gradients_of_autograd() -> None:
    draw = torch.Generator().manual_seed(0)
    image = torch.rand(13, 17, 3, generator=draw, dtype=torch.float64).requires_grad_()
    alpha = torch.rand(13, 17, generator=draw, dtype=torch.float64).requires_grad_()
    upstream = torch.rand(13, 17, 3, generator=draw, dtype=torch.float64)
    colour = (0.25, 0.5, 0.75)
    expected = image + (1.0 - alpha)[..., None] * torch.tensor(colour, dtype=torch.float64)
    torch.testing.assert_close(over(image, alpha, colour), expected.detach())
    (expected * upstream).sum().backward()
    torch.testing.assert_close(gradient_by_alpha(upstream, colour), alpha.grad)
    assert over(image, alpha, BLACK) is image


def test_the_loss_of_a_drawing_has_the_gradients_of_autograd() -> None:
    draw = torch.Generator().manual_seed(1)
    view = street().views[0]
    crop = Crop(view, Rect(10, 4, 40, 30))
    h, w = crop.rect.height, crop.rect.width
    image = torch.rand(h, w, 3, generator=draw).requires_grad_()
    alpha = torch.rand(h, w, generator=draw).requires_grad_()
    truth = torch.randint(0, 256, (h, w, 4), generator=draw, dtype=torch.uint8)
    truth[..., 3] = KEPT
    truth[3:9, 4:20, 3] = CARVED
    background = Background("random", 3, 5)
    settings = StepSettings(1, {}, (0.9, 0.999), 1e-15, 0.2, carves=True, background=background)
    found = drawn_loss(image, GivenPlanes(alpha.detach()), truth, crop, settings, weight=0.5)
    colour = torch.tensor(background.colour(view.name))
    seen = image + (1.0 - alpha)[..., None] * colour
    loss = photometric_loss(seen, truth, crop, 0.2, weight=0.5)
    core = crop.core_in_rect
    hidden = torch.zeros(h, w)
    hidden[core.y0 : core.y1, core.x0 : core.x1] = 1
    hidden *= truth[..., 3] == CARVED
    loss = loss + 0.5 * (alpha * hidden).sum() / (view.width * view.height)
    loss.backward()
    torch.testing.assert_close(found.share, loss.detach())
    torch.testing.assert_close(found.of_image, image.grad)
    torch.testing.assert_close(found.of_alpha, alpha.grad)


@one_threaded
def test_best_and_renderers_of_tables_leave_the_bits_of_none() -> None:
    expected, losses = run("random")
    assert losses != run("black")[1]
    for preset, draws in (
        ("best", None),
        ("none", TableCpuRenderer()),
        ("best", TableCpuRenderer()),
    ):
        rows, found = run("random", preset, draws=draws)
        assert found == losses
        for name in NAMES:
            assert torch.equal(rows[name], expected[name]), name


@pytest.mark.parametrize("preset", ["naive", "clm", "gs-scale"])
@one_threaded
def test_schedules_of_papers_train_over_a_background(preset: str) -> None:
    _, losses = run("white")
    _, found = run("white", preset)
    assert found == pytest.approx(losses, rel=1e-4)


@one_threaded
def test_crops_are_over_the_background_of_their_view() -> None:
    batches = BATCHES[:1]
    expected, (loss,) = run("random", batches=batches)
    rows, (found,) = run("random", "best", batches=batches, limits=Limits(rows=150, residents=0))
    assert found == pytest.approx(loss, rel=1e-6)
    for name in NAMES:  # Adam's first step is as long for any gradient that does not cancel
        apart = ~torch.isclose(rows[name], expected[name], rtol=1e-4, atol=1e-6)
        assert apart.float().mean() < 0.01, name


@one_threaded
def test_random_colours_leave_nothing_transparent() -> None:
    """Over black a black wall may be a hole; over colours of chance it is seen to be one."""
    scene = street()
    black = [torch.zeros_like(photograph) for photograph in scene.photographs]
    scene = type(scene)(scene.rows, scene.views, black, scene.extent)
    covered = {}
    for background in ("black", "random"):
        trainer = Trainer(
            photo_config(background=background, resort_every=0, lr=LIVELY),
            scene.rows,
            renderer=renderer(),
            extent=scene.extent,
        )
        train(trainer, [[6]] * 25, scene=scene)
        rows = rows_of(trainer)
        splats = renderer().project(rows, scene.views[6], sh_degree=1)
        covered[background] = float(renderer().rasterize(splats)[1].mean())
    assert covered["random"] > covered["black"] + 0.1, covered


def test_a_view_without_rows_shows_the_background() -> None:
    view = street().views[0]
    model = Gaussians(street().rows, device="cpu", make_optimizer=torch.optim.SGD)
    behind = view.viewmat.clone()
    behind[2, 3] = -1e6
    nothing = type(view)("nothing", behind, view.K, view.width, view.height)
    assert (render_view(model, nothing, renderer(), WHITE) == 1.0).all()
    assert (render_view(model, nothing, renderer()) == 0.0).all()
    image, white = (render_view(model, view, renderer(), colour) for colour in (BLACK, WHITE))
    assert (white >= image).all()
    assert (white > image).any()


@pytest.mark.parametrize("max_side", [None, 24])
def test_transparent_pixels_are_white_before_white(tmp_path: Path, max_side: int | None) -> None:
    folder = write_capture(tmp_path / "capture", [("a.png", PINHOLE), ("b.png", PINHOLE)])
    for path in (folder / "images").iterdir():
        with Image.open(path) as image:
            pixels = np.zeros((image.height, image.width, 4), np.uint8)
        pixels[:, : pixels.shape[1] // 2] = 200, 0, 0, 255
        Image.fromarray(pixels).save(path, format="PNG")
    for background, right, word in (("black", 0, "black"), ("white", 255, "white")):
        capture = load_capture(
            folder,
            cache_dir=tmp_path / "cache",
            max_side=max_side,
            background=background,  # type: ignore[arg-type]
        )
        seen = read_image(capture.views[0])
        assert abs(int(seen[8, -2, 0]) - right) < 4
        assert abs(int(seen[8, 2, 0]) - 200) < 4
        assert any(f"trained on as {word}" in note for note in capture.notes)


def test_options_of_the_background() -> None:
    with pytest.raises(InputError, match="--background must be black, white or random, got blue"):
        FitConfig(data=Path("d"), out=Path("o"), background="blue")  # type: ignore[arg-type]
    assert of_this_version({})["background"] == "black"


@pytest.mark.gpu
@pytest.mark.parametrize("preset", ["none", "best"])
@pytest.mark.parametrize("drawn_by", ["raster", "gsplat"])
@one_threaded
def test_on_a_gpu_the_first_steps_are_those_of_the_cpu(preset: str, drawn_by: str) -> None:
    _, expected = run("random", batches=BATCHES[:2])
    _, losses = run("random", preset, draws=renderer(drawn_by), batches=BATCHES[:2])
    assert losses == pytest.approx(expected, rel=1e-3)
