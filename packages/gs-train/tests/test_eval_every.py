# SPDX-License-Identifier: Apache-2.0
"""``fit --eval-every``: scores and a picture while a run trains, which change nothing of it."""

from __future__ import annotations

import csv
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from one_thread import one_threaded
from PIL import Image

import gs_train
from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.cli import main
from gs_train.files.pictures import to_uint8
from gs_train.runs.held_out import HeldOut

STEPS = 6
OPTIONS = [
    *("--renderer", "cpu", "--batch-size", "2", "--max-side", "32", "--steps", str(STEPS)),
    *("--adc.refine-start", "2", "--adc.refine-every", "4", "--adc.grow-grad2d", "1e-5"),
    *("--sh-every", "4", "--resort-every", "0.05", "--seed", "3"),
]
SINGLE = ["--batch-size", "1"]
Captured = pytest.CaptureFixture[str]


def _fit(capture: Path, out: Path, *options: str) -> int:
    return main(["fit", str(capture), "--out", str(out), *OPTIONS, *options])


def _tensors(out: Path) -> dict[str, torch.Tensor]:
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    checkpoint = load_checkpoint(newest)
    assert checkpoint.step == STEPS
    return checkpoint.tensors


def _log(out: Path) -> list[dict[str, str]]:
    with open(out / "log.csv") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def looked_at(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with scores after steps 3 and 6; not to be written to."""
    out = tmp_path_factory.mktemp("eval") / "run"
    assert _fit(tiny_capture, out, "--eval-every", "3") == 0
    return out


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--offload", "none"], marks=pytest.mark.long),
        ["--offload", "best", "--device-memory", "4MiB", "--host-memory", "4GiB"],
        pytest.param(["--offload", "naive"], marks=pytest.mark.long),
        pytest.param(["--offload", "clm"], marks=pytest.mark.long),
        pytest.param(["--offload", "gs-scale", *SINGLE], marks=pytest.mark.long),
        pytest.param(["--strategy", "mcmc", "--cap", "3000"], marks=pytest.mark.long),
        pytest.param(["--renderer", "raster", "--offload", "none"], marks=pytest.mark.gpu),
        pytest.param(["--renderer", "raster", "--offload", "best"], marks=pytest.mark.gpu),
    ],
    ids=lambda options: options[1],
)
@one_threaded
def test_a_run_has_the_same_bits_with_scores_and_without(
    options: list[str], tiny_capture: Path, tmp_path: Path
) -> None:
    plain, looked = tmp_path / "plain", tmp_path / "looked"
    assert _fit(tiny_capture, plain, *options) == 0
    assert _fit(tiny_capture, looked, *options, "--eval-every", "1") == 0
    ours, theirs = _tensors(looked), _tensors(plain)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name
    metrics = [json.loads((out / "metrics.json").read_text()) for out in (plain, looked)]
    assert metrics[0]["images"] == metrics[1]["images"]
    assert len(list((looked / "previews").iterdir())) == STEPS


def test_scores_are_logged_and_a_picture_is_kept(looked_at: Path) -> None:
    rows = _log(looked_at)
    assert [row["step"] for row in rows] == ["3", "6"]
    metrics = json.loads((looked_at / "metrics.json").read_text())
    assert float(rows[-1]["test_psnr"]) == pytest.approx(metrics["psnr"])
    assert float(rows[-1]["test_ssim"]) == pytest.approx(metrics["ssim"])
    assert {"loss", "n_gaussians"} <= set(rows[0])
    pictures = sorted((looked_at / "previews").iterdir())
    assert [path.name for path in pictures] == ["000003.png", "000006.png"]
    first, last = (np.asarray(Image.open(path)) for path in pictures)
    assert first.shape == last.shape == (24, 32, 3)
    assert (first != last).any()
    # The picture is that of the first held-out view, as the model draws it in the end.
    from gs_train.data import load_capture
    from gs_train.renderers.cpu import CpuRenderer
    from gs_train.rows.visible import render_view
    from gs_train.runs.run import Run
    from gs_train.scene.scene import Scene

    run = Run.open(looked_at)
    capture = load_capture(run.config.data, cache_dir=looked_at / "cache", max_side=32)
    scene = Scene.load(capture, torch.device("cpu"), run.frame)
    model = run.model(torch.device("cpu"))
    drawn = to_uint8(render_view(model, scene.views[capture.test[0]], CpuRenderer()))
    np.testing.assert_array_equal(last, drawn)


def test_a_line_says_so_and_tensorboard_has_the_scores(
    tiny_capture: Path, tmp_path: Path, capsys: Captured
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    assert _fit(tiny_capture, out, "--steps", "2", "--eval-every", "2") == 0
    (row,) = _log(out)
    line = f"step 2: PSNR {float(row['test_psnr']):.2f}, SSIM {float(row['test_ssim']):.4f} on 2"
    assert f"{line} test images\n" in capsys.readouterr().err
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    (event,) = events.Scalars("test_psnr")
    assert event.step == 2
    assert event.value == pytest.approx(float(row["test_psnr"]), rel=1e-6)
    # Another run in the folder begins without the pictures of this one.
    assert _fit(tiny_capture, out, "--steps", "1", "--overwrite") == 0
    assert not (out / "previews").exists()


def test_without_held_out_images_it_is_refused(
    tiny_capture: Path, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "run"
    assert _fit(tiny_capture, out, "--test-every", "0", "--eval-every", "2") == 2
    assert "--eval-every 2 needs held-out images, the capture has none" in capsys.readouterr().err
    assert not (out / "config.yml").exists()
    assert _fit(tiny_capture, out, "--eval-every=-1") == 2
    assert "--eval-every must be at least 0, got -1" in capsys.readouterr().err


def test_memory_that_runs_out_in_a_look_ends_no_run(
    tiny_capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def out_of_memory(*_: object, **__: object) -> None:
        raise MemoryError("2 GiB")

    monkeypatch.setattr("gs_train.runs.held_out.score_views", out_of_memory)
    assert _fit(tiny_capture, tmp_path / "run", "--steps", "2", "--eval-every", "1") == 0
    said = capsys.readouterr().err
    assert "step 1: not scored, host memory ran out (2 GiB)" in said
    assert "test_psnr" not in _log(tmp_path / "run")[-1]


def test_a_stop_during_a_look_saves_the_step_and_leaves_a_comparison(
    tiny_capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    out = tmp_path / "run"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below nohup
    original = HeldOut.scores

    def interrupted(self: HeldOut, *args: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return original(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(HeldOut, "scores", interrupted)
    assert _fit(tiny_capture, out, "--eval-every", "2") == 130
    said = capsys.readouterr().err
    assert "stopped after step 2 of 6, checkpoint written" in said.splitlines()[-1]
    assert "PSNR" not in said
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    assert newest.name == "step_000002"
    with Image.open(out / "comparison.png") as picture:
        assert picture.size[0] > 3 * 32  # truth, render, error
    assert not (out / "metrics.json").exists()


def test_a_stop_from_python_leaves_a_comparison_too(tiny_capture: Path, tmp_path: Path) -> None:
    def stop(_: gs_train.StepReport) -> None:
        raise gs_train.StopTraining

    out = tmp_path / "run"
    with pytest.raises(gs_train.StopTraining):
        gs_train.fit(data=tiny_capture, out=out, steps=5, renderer="cpu", max_side=32, on_step=stop)
    assert (out / "comparison.png").exists()


def test_a_comparison_that_cannot_be_drawn_is_a_line(
    tiny_capture: Path, tmp_path: Path, capsys: Captured
) -> None:
    capture = Path(shutil.copytree(tiny_capture, tmp_path / "data"))
    first = min((capture / "images").iterdir())

    def stop(_: gs_train.StepReport) -> None:
        first.unlink()
        raise gs_train.StopTraining

    out = tmp_path / "run"
    with pytest.raises(gs_train.StopTraining):
        gs_train.fit(data=capture, out=out, steps=5, renderer="cpu", on_step=stop)
    assert f"{out / 'comparison.png'} is not written: {first} must be" in capsys.readouterr().err


@pytest.mark.long
def test_two_ranks_log_and_draw_what_one_does(
    tiny_capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    one, two = tmp_path / "one", tmp_path / "two"
    options = ["--cut-views", "never", "--eval-every", "2", "--resort-every", "0"]
    assert _fit(tiny_capture, one, *options) == 0
    assert _fit(tiny_capture, two, *options, "--gpus", "2") == 0
    assert (one / "log.csv").read_text() == (two / "log.csv").read_text()
    for path in sorted((one / "previews").iterdir()):
        assert path.read_bytes() == (two / "previews" / path.name).read_bytes()
    assert len(list((two / "previews").iterdir())) == 3
