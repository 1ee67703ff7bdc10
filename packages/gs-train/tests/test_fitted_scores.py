# SPDX-License-Identifier: Apache-2.0
"""Scores of right halves with colours fitted on left halves, and runs with exposures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gs_train.cli import main
from gs_train.losses.exposure import exposed
from gs_train.losses.mask import IGNORED, KEPT
from gs_train.runs.half_fit import fitted_exposure, right_half
from gs_train.runs.metrics import ImageScore, psnr, write_metrics
from gs_train.runs.scores import score_of

EXPOSURE = torch.tensor([[0.8, 0.05, 0.0, 0.02], [0.0, 0.7, 0.1, 0.05], [0.02, 0.0, 0.9, -0.01]])


def image_of(seed: int, height: int = 20, width: int = 30) -> Tensor:
    return torch.rand(height, width, 3, generator=torch.Generator().manual_seed(seed))


def test_a_known_exposure_is_found() -> None:
    image = image_of(0)
    found = fitted_exposure(image, exposed(image, EXPOSURE))
    torch.testing.assert_close(found, EXPOSURE, rtol=1e-4, atol=1e-4)


def test_hidden_pixels_have_no_part_in_the_fit() -> None:
    image, kept = image_of(1), torch.ones(20, 30, 1, dtype=torch.bool)
    kept[:, ::3] = False
    truth = exposed(image, EXPOSURE)
    found = fitted_exposure(image, truth.where(kept, torch.inf), kept)
    torch.testing.assert_close(found, EXPOSURE, rtol=1e-4, atol=1e-4)


def test_what_pixels_leave_open_stays_as_it_is() -> None:
    """A grey image says nothing about colours."""
    grey = image_of(2)[..., :1].expand(20, 30, 3)
    found = fitted_exposure(grey, grey)
    torch.testing.assert_close(found, torch.eye(3, 4), rtol=0, atol=1e-4)
    black = torch.zeros(20, 30, 3)
    torch.testing.assert_close(fitted_exposure(black, black), torch.eye(3, 4))


def test_the_left_half_alone_decides_and_the_right_half_alone_is_scored() -> None:
    image = image_of(3)
    truth = exposed(image, EXPOSURE)
    half = right_half(image, truth)
    assert half is not None
    assert half.image.shape == (20, 15, 3)
    assert psnr(*half) > 60
    other = truth.clone()
    other[:, 15:] = 0.5  # the fit does not see it
    changed = right_half(image, other)
    assert changed is not None
    assert torch.equal(changed.image, half.image)
    other = truth.clone()
    other[:, :15] = 0.5
    unlike = right_half(image, other)
    assert unlike is not None
    assert not torch.equal(unlike.image, half.image)
    assert torch.equal(unlike.truth, truth[:, 15:])


def test_halves_that_nothing_can_be_said_of_have_no_score() -> None:
    image, kept = image_of(4), torch.ones(20, 30, 1, dtype=torch.bool)
    assert right_half(image_of(4, width=11), image_of(5, width=11)) is None
    assert right_half(image_of(4, width=12), image_of(5, width=12)) is not None
    for hidden in (slice(0, 15), slice(15, 30)):
        masked = kept.clone()
        masked[:, hidden] = False
        assert right_half(image, image, masked) is None


def test_a_score_has_both(tmp_path: Path) -> None:
    image = image_of(6)
    photograph = (exposed(image, EXPOSURE) * 255).round().to(torch.uint8)
    plain = score_of(3, "a", image, photograph, None)
    both = score_of(3, "a", image, photograph, None, fits_colours=True)
    assert plain is not None
    assert both is not None
    assert plain.fitted_psnr is None
    assert both.psnr == plain.psnr
    assert both.fitted_psnr is not None
    assert both.fitted_psnr > plain.psnr + 10
    states = torch.full((20, 30, 1), KEPT, dtype=torch.uint8)
    states[:, 15:] = IGNORED
    hidden = score_of(4, "b", image, torch.cat([photograph, states], 2), None, fits_colours=True)
    assert hidden is not None
    assert hidden.fitted_psnr is None
    metrics = _written(tmp_path, [both, hidden], is_fitted=True)
    assert metrics["fitted_psnr"] == both.fitted_psnr
    assert metrics["images"][1]["fitted_psnr"] == "n/a"
    assert "fitted_psnr" not in _written(tmp_path, [plain], is_fitted=False)


def _written(folder: Path, scores: list[ImageScore], *, is_fitted: bool) -> dict[str, Any]:
    return write_metrics(
        folder / "metrics.json",
        images=scores,
        steps=1,
        seconds=1.0,
        images_per_second=1.0,
        n_gaussians=1,
        peak_device_bytes=0,
        peak_device_reserved_bytes=0,
        peak_host_bytes=0,
        preset="none",
        renderer="cpu",
        seed=0,
        is_fitted=is_fitted,
    )


# ------------------------------------------------------------------------------- the command


def fit(data: Path, out: Path, *more: str) -> int:
    words = ["fit", str(data), "--out", str(out), "--renderer", "cpu", "--strategy", "mcmc"]
    return main([*words, "--cap", "300", "--sh-degree", "1", *more])


def test_a_run_with_exposures_reports_both_scores_and_goes_on(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, again = tmp_path / "run", tmp_path / "again"
    options = ("--exposure", "--background", "white", "--eval-every", "3")
    assert fit(tiny_capture, run, "--steps", "6", *options) == 0
    said = capsys.readouterr().err
    assert "right halves after a fit of colours to the left: PSNR " in said
    assert "with colours fitted)" in said
    metrics = json.loads((run / "metrics.json").read_text())
    assert all(image["fitted_psnr"] > 0 for image in metrics["images"])
    page = (run / "report.html").read_text()
    assert "PSNR of right halves, colours fitted" in page
    assert "test_fitted_psnr" in (run / "log.csv").read_text().splitlines()[0]
    assert fit(tiny_capture, again, "--steps", "6", "--checkpoint-every", "3", *options) == 0
    for checkpoint in (again / "checkpoints").glob("*6*"):
        shutil.rmtree(checkpoint)
    assert main(["fit", str(tiny_capture), "--out", str(again), "--resume"]) == 0
    resumed = json.loads((again / "metrics.json").read_text())
    assert resumed["images"] == metrics["images"]
    capsys.readouterr()
    assert main(["eval", str(run), "--renderer", "cpu"]) == 0
    assert json.loads((run / "metrics.json").read_text())["images"] == metrics["images"]
    for option in ("--no-exposure", "--background=black"):
        words = ["fit", str(tiny_capture), "--out", str(run), "--resume", option]
        assert main(words) == 2
        assert "--resume must keep the run's options" in capsys.readouterr().err


def test_eval_fits_colours_to_a_run_without_exposures(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert fit(tiny_capture, run, "--steps", "2") == 0
    plain = json.loads((run / "metrics.json").read_text())
    assert "fitted_psnr" not in plain
    words = ["eval", str(run), "--renderer", "cpu"]
    assert main([*words, "--exposure"]) == 0
    both = json.loads((run / "metrics.json").read_text())
    assert both["psnr"] == plain["psnr"]
    assert both["fitted_psnr"] == pytest.approx(
        sum(image["fitted_psnr"] for image in both["images"]) / len(both["images"])
    )
    assert "right halves after a fit of colours to the left: PSNR " in capsys.readouterr().err
    assert main(words) == 0
    assert json.loads((run / "metrics.json").read_text())["images"] == plain["images"]


def test_a_run_of_earlier_versions_goes_on_without_exposures(
    tiny_capture: Path, tmp_path: Path
) -> None:
    assert fit(tiny_capture, tmp_path / "run", "--steps", "2") == 0
    config = tmp_path / "run/config.yml"
    lines = config.read_text().splitlines()
    kept = [line for line in lines if line.split(":")[0] not in ("exposure", "background")]
    assert len(kept) == len(lines) - 2
    config.write_text("\n".join(kept) + "\n")
    assert (
        main(["fit", str(tiny_capture), "--out", str(tmp_path / "run"), "--more-steps", "1"]) == 0
    )
