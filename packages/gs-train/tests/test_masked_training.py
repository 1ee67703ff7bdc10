# SPDX-License-Identifier: Apache-2.0
"""Training on photographs with masks: through every preset and crop, and through the command."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cpu_tables import TableCpuRenderer
from one_thread import one_threaded
from photo_runs import assert_crops_see_their_part, assert_same_rows, run
from photographed import (
    Photographed,
    masked_street,
    renderer,
    street,
)
from planes import HEIGHT, ON_CPU, WIDTH, folder_with
from torch import Tensor

import gs_train
from gs_train.cli import main
from gs_train.data import load_capture, read_image
from gs_train.errors import InputError
from gs_train.losses.mask import CARVED, KEPT
from gs_train.options.presets import PRESETS


def repainted(scene: Photographed) -> Photographed:
    """With other colours where masks hide."""
    photographs = []
    for photograph in scene.photographs:
        other = photograph.clone()
        if other.shape[2] == 4:
            other[..., :3][other[..., 3] != KEPT] = 255
        photographs.append(other)
    return dataclasses.replace(scene, photographs=photographs)


@pytest.mark.parametrize("preset", PRESETS)
@one_threaded
def test_no_preset_sees_what_is_hidden(preset: str) -> None:
    scene = masked_street()
    ours, losses, _ = run(scene, preset)
    theirs, other_losses, _ = run(repainted(scene), preset)
    assert losses == other_losses
    assert_same_rows(ours, theirs)


@one_threaded
def test_best_and_renderers_of_tables_leave_the_bits_of_none() -> None:
    expected, losses, _ = run(masked_street())
    for preset, draws in (
        ("best", None),
        ("none", TableCpuRenderer()),
        ("best", TableCpuRenderer()),
    ):
        rows, found, _ = run(masked_street(), preset, draws=draws)
        assert found == losses
        assert_same_rows(rows, expected)


@pytest.mark.parametrize("preset", ["gs-scale", "best"])
@one_threaded
def test_crops_see_the_masks_of_their_view(preset: str) -> None:
    assert_crops_see_their_part(masked_street(), preset)


@one_threaded
def test_a_mask_that_hides_all_moves_nothing() -> None:
    scene = masked_street()
    assert not (scene.photographs[2][..., 3] == KEPT).any()
    rows, losses, _ = run(scene, batches=[[2]])
    assert losses == [0.0]
    assert_same_rows(rows, scene.rows)


def mean_alpha(rows: dict[str, Tensor], scene: Photographed, carved: Tensor) -> float:
    with torch.no_grad():
        draws = renderer()
        _, alpha = draws.rasterize(draws.project(rows, scene.views[0], sh_degree=1))
    return float(alpha[carved].mean())


@one_threaded
def test_carved_pixels_become_transparent_and_ignored_ones_do_not() -> None:
    scene, k = street(), 6
    photograph = scene.photographs[k]
    left = torch.full((*photograph.shape[:2], 1), KEPT, dtype=torch.uint8)
    left[:, :24] = CARVED
    masked = torch.cat([photograph, left], dim=2)
    rows = {**scene.rows, "opacities": scene.rows["opacities"] + 3.5}
    scene = dataclasses.replace(scene, rows=rows, views=[scene.views[k]], photographs=[masked])
    carved = left == CARVED
    before = mean_alpha(scene.rows, scene, carved)
    assert before > 0.2
    after, _, _ = run(scene, batches=[[0]] * 60)
    assert mean_alpha(after, scene, carved) < 0.25 * before
    assert mean_alpha(after, scene, ~carved) > 0.8 * mean_alpha(scene.rows, scene, ~carved)


@pytest.mark.gpu
@pytest.mark.parametrize("drawn_by", ["raster", "gsplat"])
@pytest.mark.parametrize("preset", ["none", "best", "clm"])
@one_threaded
def test_on_a_gpu_masks_hide_and_carve_as_on_the_cpu(preset: str, drawn_by: str) -> None:
    """Losses of a few steps: rows that Adam has moved apart by rounding do so later."""
    _, expected, _ = run(masked_street(), preset)
    _, found, _ = run(masked_street().on("cuda"), preset, draws=renderer(drawn_by))
    assert found == pytest.approx(expected, rel=2e-3, abs=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("preset", ["none", "best"])
@one_threaded
def test_on_a_gpu_no_bit_depends_on_what_is_hidden(preset: str) -> None:
    draws = renderer("raster")
    ours, losses, _ = run(masked_street().on("cuda"), preset, draws=draws)
    theirs, other_losses, _ = run(repainted(masked_street()).on("cuda"), preset, draws=draws)
    assert losses == other_losses
    assert_same_rows(ours, theirs)


# ------------------------------------------------------------------------------- the command


@pytest.fixture
def capture(tiny_capture: Path, tmp_path: Path) -> Path:
    """With masks on two of three photographs, one of which, for a test, hides all."""

    def plane(i: int) -> np.ndarray:
        kept = np.full((HEIGHT, WIDTH), 255 if i else 0, np.uint8)
        kept[10:30, 4 * i : 4 * i + 20] = 0
        return kept

    return folder_with(tiny_capture, tmp_path / "capture", "masks", plane)


def fit(data: Path, out: Path, *more: str, steps: int = 4) -> int:
    return main(["fit", str(data), "--out", str(out), "--steps", str(steps), *ON_CPU, *more])


@pytest.mark.parametrize("mode", ["ignore", "carve"])
def test_fit_says_which_pixels_hide_and_scores_the_others(
    mode: str, capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(capture, tmp_path / "run", "--mask", mode) == 0
    said = capsys.readouterr().err
    assert said.count("masks/: masks of 8 of 12 photographs: black pixels are ") == 1
    assert f"scores (--mask {mode})" in said
    views = load_capture(capture, cache_dir=tmp_path / "cache").views
    assert f"not scored: the mask of {views[0].name} hides every pixel" in said
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert [image["name"] for image in metrics["images"]] == [views[8].name]
    assert main(["eval", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run/metrics.json").read_text())["psnr"] == metrics["psnr"]


def model_of(out: Path) -> bytes:
    return next(out.rglob("*.ply")).read_bytes()


@one_threaded
def test_masks_wait_in_the_file_of_decoded_photographs(capture: Path, tmp_path: Path) -> None:
    assert fit(capture, tmp_path / "memory", steps=12) == 0
    assert fit(capture, tmp_path / "file", "--image-cache", "20000", steps=12) == 0
    assert fit(capture, tmp_path / "off", "--mask", "off", steps=12) == 0
    assert model_of(tmp_path / "file") == model_of(tmp_path / "memory")
    assert model_of(tmp_path / "off") != model_of(tmp_path / "memory")


def test_a_run_goes_on_with_its_masks_alone(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert fit(capture, out) == 0
    assert fit(capture, out, "--resume", "--mask", "off", steps=6) != 0
    assert "--mask" in capsys.readouterr().err
    assert fit(capture, out, "--resume", steps=6) == 0
    first = next((capture / "masks").rglob("*.png"))
    first.rename(first.with_suffix(".gone"))
    assert fit(capture, out, "--resume", steps=8) != 0


def test_a_capture_from_python_has_its_masks_already(capture: Path, tmp_path: Path) -> None:
    loaded = load_capture(capture, cache_dir=tmp_path / "cache")
    assert read_image(loaded.views[2]).shape == (48, 64, 4)
    fitted = gs_train.fit(
        capture=loaded, out=tmp_path / "run", steps=2, renderer="cpu", strategy="mcmc", cap=300
    )
    assert len(fitted.metrics["images"]) == 1
    with pytest.raises((TypeError, InputError), match="mask"):
        gs_train.fit(capture=loaded, out=tmp_path / "other", mask="off", steps=2)
