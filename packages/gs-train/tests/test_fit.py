# SPDX-License-Identifier: Apache-2.0
"""Whole runs of the command line, as processes where signals are involved."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import gs_train.runs.training as fit
from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.cli import main
from gs_train.data import write_demo_capture
from gs_train.files.ply import load_ply
from gs_train.runs.record import RunRecord
from gs_train.runs.run import Run
from gs_train.scene.camera_paths import interpolated_path
from gs_train.scene.path_file import save_path

STEPS = 14
OPTIONS = [
    *("--renderer", "cpu", "--steps", str(STEPS), "--checkpoint-every", "4", "--batch-size", "2"),
    *("--adc.refine-start", "4", "--adc.refine-every", "6", "--adc.reset-every", "16"),
    *("--adc.grow-grad2d", "1e-5", "--sh-every", "8", "--resort-every", "0.05", "--seed", "3"),
]


def _fit(capture: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gs_train", "fit", str(capture), "--out", str(out), *options]
    # Two threads whatever the machine has: a run and its continuation must sum alike. They wait for
    # each other without spinning, which takes minutes on a machine with other work.
    threads = {"OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
    environment = {**os.environ, **threads}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def _wait_for_checkpoint(run: subprocess.Popen[str], out: Path, step: int) -> None:
    while not (out / "checkpoints" / f"step_{step:06}").exists():
        assert run.poll() is None, run.communicate()[1]
        time.sleep(0.01)


@pytest.fixture(scope="module")
def finished(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    run = _fit(tiny_capture, out, *OPTIONS)
    _, errors = run.communicate()
    assert run.returncode == 0, errors
    return out


def _state(out: Path) -> dict[str, torch.Tensor]:
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    checkpoint = load_checkpoint(newest)
    assert checkpoint.step == STEPS
    return checkpoint.tensors


def _assert_same(a: Path, b: Path) -> None:
    ours, theirs = _state(a), _state(b)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def test_a_run_leaves_everything_it_should(finished: Path) -> None:
    metrics = json.loads((finished / "metrics.json").read_text())
    keys = "psnr ssim lpips steps seconds images_per_second n_gaussians peak_device_bytes"
    keys += " peak_device_reserved_bytes peak_host_bytes preset renderer seed versions"
    assert set(keys.split()) <= set(metrics)
    assert (metrics["steps"], metrics["renderer"], metrics["seed"]) == (STEPS, "cpu", 3)
    assert metrics["psnr"] > 8
    assert isinstance(metrics["lpips"], float) or "LPIPS needs " in metrics["lpips_missing"]
    rows = load_ply(finished / "point_cloud" / f"iteration_{STEPS}" / "point_cloud.ply")
    assert len(rows["means"]) == metrics["n_gaussians"]
    with open(finished / "log.csv") as file:
        logged = list(csv.DictReader(file))
    assert int(logged[-1]["step"]) == STEPS
    assert {"loss", "n_gaussians"} <= set(logged[-1])
    for name in ("config.yml", "comparison.png", "tensorboard"):
        assert (finished / name).exists()


def test_the_model_is_exported_in_the_frame_of_the_capture(finished: Path) -> None:
    run = Run.open(finished)
    rows = load_ply(finished / "point_cloud" / f"iteration_{STEPS}" / "point_cloud.ply")
    trained = run.geometry()["means"].double()
    expected = trained / run.frame.scale - torch.tensor(run.frame.shift, dtype=torch.float64)
    torch.testing.assert_close(rows["means"].double(), expected, rtol=1e-6, atol=1e-6)


def test_killed_in_the_middle_and_resumed_it_ends_with_the_same_bits(
    tiny_capture: Path, tmp_path: Path, finished: Path
) -> None:
    out = tmp_path / "run"
    run = _fit(tiny_capture, out, *OPTIONS)
    _wait_for_checkpoint(run, out, 4)
    run.kill()
    run.communicate()
    resumed = _fit(tiny_capture, out, "--resume")
    _, errors = resumed.communicate()
    assert resumed.returncode == 0, errors
    assert "Gaussians after 0 steps" not in errors
    _assert_same(out, finished)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(
    tiny_capture: Path, tmp_path: Path, number: int, status: int
) -> None:
    out = tmp_path / "a run"
    run = _fit(tiny_capture, out, *OPTIONS, "--steps", "100000")
    _wait_for_checkpoint(run, out, 4)
    run.send_signal(number)
    _, errors = run.communicate()
    assert run.returncode == status, errors
    assert "Traceback" not in errors
    last = errors.strip().splitlines()[-1]
    assert last.endswith(f"go on with: gs-train fit {tiny_capture} --out '{out}' --resume")
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    assert f"stopped after step {load_checkpoint(newest).step:,} of 100,000" in last
    assert (out / "comparison.png").exists()


@pytest.mark.parametrize("moment", ["write_point_cloud", "report"])
def test_a_stop_after_the_last_step_says_how_to_go_on_too(
    moment: str,
    tiny_capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    original = getattr(fit, moment)

    def stopped_meanwhile(*args: object, **options: object) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **options)

    monkeypatch.setattr(fit, moment, stopped_meanwhile)
    command = ["fit", str(tiny_capture), "--out", str(tmp_path / "run"), "--renderer", "cpu"]
    assert main([*command, "--steps", "2"]) == 143
    assert "go on with: gs-train fit" in capsys.readouterr().err.splitlines()[-1]
    monkeypatch.undo()
    assert main([*command[:4], "--resume"]) == 0
    assert (tmp_path / "run" / "metrics.json").exists()


def test_the_checkpoints_that_are_kept_are_of_different_steps(finished: Path) -> None:
    kept = sorted(path.name for path in (finished / "checkpoints").iterdir())
    assert kept == ["step_000012", "step_000014"]


def test_without_held_out_images_there_are_no_scores(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    options = ["--steps", "2", "--test-every", "0", "--sh-degree", "0", "--batch-size", "15"]
    command = ["fit", str(tiny_capture), "--out", str(out), "--renderer", "cpu", *options]
    assert main(command) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert (metrics["psnr"], metrics["images"]) == ("n/a", [])
    assert main(["render", str(out), "--path", "test"]) == 2
    assert "needs held-out views" in capsys.readouterr().err
    assert main(["export", str(out)]) == 0


def test_a_moved_capture_is_found_again(
    finished: Path, tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, moved = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(finished, out)
    shutil.copytree(tiny_capture, moved)
    config = out / "config.yml"
    config.write_text(config.read_text().replace(str(tiny_capture), str(tmp_path / "gone")))
    assert main(["eval", str(out), "--renderer", "cpu"]) == 2
    assert "got no folder at" in capsys.readouterr().err
    assert main(["eval", str(out), "--renderer", "cpu", "--data", str(moved)]) == 0
    assert main(["fit", str(moved), "--out", str(out), "--resume"]) == 0


def test_eval_render_and_export_read_the_run(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = json.loads((finished / "metrics.json").read_text())
    assert main(["eval", str(finished), "--renderer", "cpu"]) == 0
    after = json.loads((finished / "metrics.json").read_text())
    assert after["psnr"] == before["psnr"]
    assert after["seconds"] == before["seconds"]
    for path in ("interp", "ellipse", "test"):
        to = tmp_path / path
        options = ["--path", path, "--frames", "3", "--to", str(to), "--renderer", "cpu"]
        assert main(["render", str(finished), *options]) == 0
        assert len(list(to.glob("*.png"))) == (2 if path == "test" else 3)
    keys = tmp_path / "fly.json"
    record = RunRecord.load(finished / "run.json")
    assert record is not None
    save_path(keys, interpolated_path(record.views, 4)[1:3])
    options = ["--path", str(keys), "--frames", "3", "--renderer", "cpu"]
    assert main(["render", str(finished), *options]) == 0
    assert len(list((finished / "renders" / "fly").glob("*.png"))) == 3
    video = tmp_path / "orbit.mp4"
    options = ["--path", "ellipse", "--frames", "4", "--to", str(video), "--renderer", "cpu"]
    assert main(["render", str(finished), *options]) == 0
    assert video.stat().st_size > 0

    assert main(["export", str(finished), "--layout", "inria", "--to", str(tmp_path / "i")]) == 0
    ply = tmp_path / "i" / "point_cloud" / f"iteration_{STEPS}" / "point_cloud.ply"
    assert (
        ply.read_bytes()
        == (finished / "point_cloud" / f"iteration_{STEPS}" / "point_cloud.ply").read_bytes()
    )
    cameras = json.loads((tmp_path / "i" / "cameras.json").read_text())
    assert len(cameras) == 12
    arguments = (tmp_path / "i" / "cfg_args").read_text()
    assert arguments.startswith("Namespace(sh_degree=3, ")
    assert "white_background=False" in arguments
    assert main(["export", str(finished), "--layout", "gsplat", "--to", str(tmp_path / "g")]) == 0
    saved = torch.load(tmp_path / "g" / "ckpts" / f"ckpt_{STEPS - 1}_rank0.pt", weights_only=True)
    rows = load_ply(tmp_path / "g" / "ply" / f"point_cloud_{STEPS}.ply")
    torch.testing.assert_close(saved["splats"]["means"], rows["means"], rtol=0, atol=0)
    assert saved["step"] == STEPS - 1
    capsys.readouterr()


def test_a_finished_run_is_neither_repeated_nor_lost(
    tiny_capture: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _state(finished)
    command = ["fit", str(tiny_capture), "--out", str(finished), "--renderer", "cpu"]
    assert main([*command, "--steps", "5"]) == 2
    assert "holds another run: add --resume" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 0
    after = _state(finished)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_resuming_with_other_options_is_refused(
    tiny_capture: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["fit", str(tiny_capture), "--out", str(finished), "--resume"]
    assert main([*command, "--batch-size", "5"]) == 2
    assert "batch_size was 2, got 5" in capsys.readouterr().err
    assert main([*command, "--steps", "3"]) == 2
    assert "--steps must be at least the 14" in capsys.readouterr().err


def test_resuming_on_other_photographs_is_refused(
    tiny_capture: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_demo_capture(tmp_path / "other", n_views=9, width=64, height=48, seed=5)
    assert main(["fit", str(other), "--out", str(finished), "--resume"]) == 2
    assert "needs the views and the split" in capsys.readouterr().err
    names = tmp_path / "names.txt"
    names.write_text("view_005.jpg\n")
    command = ["fit", str(tiny_capture), "--out", str(finished), "--resume"]
    assert main([*command, "--test-list", str(names)]) == 2
    assert "held-out images or depth maps differ" in capsys.readouterr().err


def test_other_photographs_are_not_scored_as_the_runs(
    tiny_capture: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (finished / "metrics.json").read_bytes()
    other = write_demo_capture(tmp_path / "other", n_views=13, width=64, height=48, seed=1)
    options = [str(finished), "--renderer", "cpu", "--data", str(other)]
    for command in (["eval"], ["render", "--path", "test", "--to", str(tmp_path / "frames")]):
        assert main([*command, *options]) == 2
        error = capsys.readouterr().err
        assert f"--data {other} holds other views or another split" in error
        assert f"{tiny_capture} held" in error
    assert (finished / "metrics.json").read_bytes() == before
    assert not (tmp_path / "frames").exists()


@pytest.mark.parametrize(
    "command",
    [["export"], ["export", "--layout", "gsplat"], ["render"], ["render", "--path", "test"]],
)
def test_a_place_that_cannot_be_written_is_found_before_the_work(
    command: list[str], finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    places = [tmp_path / "file", tmp_path / "file" / "below"]
    if command[0] == "render":
        places += [tmp_path / "file" / "x.mp4", Path("/proc/foo/x.mp4")]
    for to in places:
        assert main([*command, str(finished), "--to", str(to)]) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith(f"gs-train: error: --to {to}")
        assert " cannot be written: " in last
    assert (tmp_path / "file").read_text() == "mine"


def test_a_demo_that_cannot_run_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    for options, message in (
        (["--out", str(tmp_path / "new"), "--seed", "-1"], "--seed must be at least 0, got -1"),
        (["--out", str(tmp_path / "new"), "--steps", "0"], "--steps must be at least 1, got 0"),
        (["--out", str(tmp_path / "file")], "cannot be written: "),
    ):
        assert main(["demo", *options]) == 2
        assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_demo_runs_from_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out), "--steps", "3", "--renderer", "cpu"]) == 0
    assert (out / "run" / "comparison.png").exists()
    assert main(["demo", "--out", str(out), "--steps", "3", "--renderer", "cpu"]) == 2
    assert "holds an earlier demo: add --overwrite" in capsys.readouterr().err
