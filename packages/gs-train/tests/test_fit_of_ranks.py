# SPDX-License-Identifier: Apache-2.0
"""Whole runs of several ranks, as the command line starts them, leave what one rank leaves."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import torch
from PIL import Image
from saved_by_ranks import assert_same, by_key
from small_captures import damage_the_middle
from torch import Tensor

import gs_train
from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.checkpoint.row_names import STRANDS
from gs_train.cli import main
from gs_train.errors import InputError
from gs_train.files.ply import load_ply
from gs_train.options.config import FitConfig
from gs_train.runs.offload import few_views
from gs_train.runs.step_report import StepReport, StopTraining

STEPS = 16
RANK_VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture(autouse=True)
def _nobody_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def _command(capture: Path, out: Path, *more: str, renderer: str = "cpu") -> list[str]:
    """A run that refines. Neither two nor three ranks draw as many whole views each."""
    refines = "--adc.refine-start 12 --adc.refine-every 36 --adc.grow-grad2d 0.00005"
    options = f"--renderer {renderer} --batch-size 5 --cut-views never --sh-degree 1 {refines}"
    whole = ["fit", str(capture), "--out", str(out), "--steps", str(STEPS), *options.split()]
    return [*whole, "--resort-every", "0.05", *more]


@pytest.fixture(scope="module")
def alone(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one rank; not to be written to."""
    out = tmp_path_factory.mktemp("alone") / "run"
    assert main(_command(tiny_capture, out)) == 0
    return out


def _rows(run: Path) -> list[list[float]]:
    """Of the PLY file, in an order of their own."""
    (ply,) = run.rglob("point_cloud.ply")
    rows = load_ply(ply)
    return sorted(torch.cat([v.reshape(len(v), -1) for v in rows.values()], 1).tolist())


def _saved(run: Path) -> dict[str, Tensor]:
    """Rows of the newest checkpoint in the order of keys, without what only ranks have."""
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    tensors = by_key(load_checkpoint(newest).tensors)
    return {
        name: tensors[name]
        for name in sorted(tensors)
        if name != STRANDS and not name.startswith("columns/")
    }


def _assert_as_alone(run: Path, alone: Path) -> None:
    assert len(_rows(run)) > 8000  # it has grown
    assert _rows(run) == _rows(alone)
    assert_same(_saved(run), _saved(alone))
    assert (run / "log.csv").read_text() == (alone / "log.csv").read_text()
    ours, theirs = (json.loads((at / "metrics.json").read_text()) for at in (run, alone))
    for name in ("psnr", "ssim", "n_gaussians", "steps", "images"):
        assert ours[name] == theirs[name], name


def test_two_ranks_leave_what_one_leaves(
    tiny_capture: Path, alone: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    # Memory for less than half of the photographs; a file has the others.
    little = ["--image-cache", "64KiB"]
    assert main(_command(tiny_capture, out, "--gpus", "2", *little)) == 0
    said = capfd.readouterr().err
    assert said.count("training and 2 test images") == 1  # one rank speaks
    assert said.count("is decoded once, into a file of 72.0 KiB") == 1
    assert "rendering with cpu on cpu in 2 processes" in said
    _assert_as_alone(out, alone)
    ranks = json.loads((out / "metrics.json").read_text())["ranks"]
    assert len(ranks) == 2
    assert all(rank["peak_host_bytes"] > 0 for rank in ranks)
    seconds = json.loads((out / "metrics.json").read_text())["seconds"]
    for rank in ranks:
        assert rank["waited_device_s"] > 0
        assert rank["waited_host_s"] > 0
        assert rank["waited_device_s"] + rank["waited_host_s"] < seconds
    assert "ranks" not in json.loads((alone / "metrics.json").read_text())


@pytest.mark.gpu
@pytest.mark.gpu2
def test_two_gpus_leave_what_one_leaves(tiny_capture: Path, tmp_path: Path) -> None:
    runs = [tmp_path / "one", tmp_path / "two"]
    for n, out in enumerate(runs, 1):
        command = _command(tiny_capture, out, "--gpus", str(n), renderer="raster")
        assert main(command) == 0
    _assert_as_alone(runs[1], runs[0])
    ranks = json.loads((runs[1] / "metrics.json").read_text())["ranks"]
    assert all(rank["peak_device_bytes"] > 0 for rank in ranks)
    assert all(rank["waited_device_s"] > 0 for rank in ranks)


@pytest.mark.gpu
@pytest.mark.gpu2
def test_all_gpus_are_those_of_the_machine(
    tiny_capture: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(_command(tiny_capture, out, "--gpus", "all", renderer="raster")) == 0
    ranks = json.loads((out / "metrics.json").read_text())["ranks"]
    assert len(ranks) == torch.cuda.device_count()
    assert f" in {len(ranks)} processes" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("batch_size", "cut_views", "said"),
    [
        (1, "auto", "a batch of 1 view is cut for 3 processes, which may take longer than one"),
        (2, "never", "a batch of 2 views leaves 1 of 3 processes idle: --batch-size 3, or a mult"),
        (3, "auto", ""),
    ],
)
def test_fewer_views_than_ranks_are_a_line(
    batch_size: int, cut_views: Literal["auto", "never"], said: str
) -> None:
    config = FitConfig(data=Path("d"), out=Path("o"), batch_size=batch_size, cut_views=cut_views)
    line = few_views(config, 3) or ""
    assert line.startswith(said)
    assert bool(line) == bool(said)
    assert few_views(config, 1) is None


@pytest.mark.long
def test_ranks_of_torchrun_leave_what_one_leaves(
    tiny_capture: Path, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", "-m", "gs_train"]
    done = subprocess.run(
        [*command, *_command(tiny_capture, out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(" in 2 processes") == 1
    _assert_as_alone(out, alone)


@pytest.mark.long
def test_a_run_with_mcmc_goes_on_with_one_and_two_and_three(
    tiny_capture: Path, tmp_path: Path
) -> None:
    """With ``best``. What one rank leaves that was not stopped, log lines of the last steps of each
    part left aside."""
    more = "--offload best --strategy mcmc --mcmc.refine-start 12 --mcmc.refine-every 36"
    more += f" --mcmc.cap-max 8300 --decay-steps {STEPS}"
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert main(_command(tiny_capture, whole, *more.split())) == 0
    until = _command(tiny_capture, out, *more.split())
    until[until.index("--steps") + 1] = "5"
    assert main(until) == 0
    resumed = ["fit", str(tiny_capture), "--out", str(out), "--resume", "--steps"]
    assert main([*resumed, "10", "--gpus", "2"]) == 0
    assert main([*resumed, str(STEPS), "--gpus", "3"]) == 0
    assert_same(_saved(out), _saved(whole))
    ours, theirs = (json.loads((at / "metrics.json").read_text()) for at in (out, whole))
    assert theirs["n_gaussians"] > 8000  # it has grown
    for name in ("psnr", "ssim", "n_gaussians", "steps", "images"):
        assert ours[name] == theirs[name], name


@pytest.mark.long
def test_a_run_of_two_that_was_stopped_goes_on_with_one_and_then_with_three(
    tiny_capture: Path, alone: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    # SIGINT is ignored below nohup.
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from gs_train.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, *_command(tiny_capture, out, "--gpus=2")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        said = next(line for line in run.stderr if line.startswith("step 1/"))
        run.send_signal(signal.SIGINT)
        said += run.stderr.read()
    assert run.returncode == 128 + signal.SIGINT
    assert said.count("gs-train: stopped after step") == 1
    assert said.endswith("--resume --gpus 2\n")
    with Image.open(out / "comparison.png") as picture:
        picture.load()  # of the step that it stopped at, written whole
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    stopped_at = load_checkpoint(newest).step
    assert 1 <= stopped_at < STEPS - 2

    def stop(report: StepReport) -> None:
        if report.step == stopped_at + 1:
            raise StopTraining

    with pytest.raises(StopTraining):
        gs_train.fit(out=out, resume=True, on_step=stop)
    assert main(["fit", str(tiny_capture), "--out", str(out), "--resume", "--gpus", "3"]) == 0
    capfd.readouterr()
    _assert_as_alone(out, alone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--offload clm", "--offload clm is for one GPU: several (--gpus) take --offload none or "),
        ("--offload gs-scale", "--offload gs-scale is for one GPU"),
        ("--offload naive", "--offload naive is for one GPU"),
        ("--renderer gsplat", "--gpus needs CUDA devices, there are none here"),
        ("--gpus 0", "--gpus must be a number of at least 1, or all, got '0'"),
    ],
)
def test_what_is_for_one_gpu_is_refused_before_anything_is_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    out = tmp_path / "run"
    command = ["fit", "DATA", "--out", str(out), "--renderer", "cpu", "--gpus", "2"]
    if "gsplat" in options and torch.cuda.is_available():
        message = "--gpus must be at most" if torch.cuda.device_count() < 2 else "--renderer gsplat"
    assert main([*command, *options.split()]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"gs-train: error: {message}")
    assert not out.exists()


def test_trouble_of_all_ranks_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = ["fit", str(tmp_path / "nothing"), "--out", str(out), "--renderer", "cpu"]
    assert main([*command, "--gpus", "2"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("gs-train: error: rank 0: ")
    assert not out.exists()


@pytest.mark.long
def test_a_photograph_that_is_broken_ends_all_ranks_with_their_steps_saved(
    tiny_capture: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, out = Path(shutil.copytree(tiny_capture, tmp_path / "data")), tmp_path / "run"
    broken = sorted((data / "images").iterdir())[9]
    with Image.open(broken) as image:
        image.save(broken, format="PNG")
    damage_the_middle(broken)
    command = _command(data, out, "--gpus", "2")
    command[command.index("--batch-size") + 1] = "1"
    assert main(command) == 2
    lines = capfd.readouterr().err.splitlines()
    (line,) = (line for line in lines if "error" in line)
    assert re.match(rf"gs-train: error: rank [01]: {broken} must be a readable image, got: ", line)
    assert sum(line.startswith("a batch of 1 view leaves 1 of 2 processes") for line in lines) == 1
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    step = load_checkpoint(newest).step
    assert 0 < step < 10
    other = sorted((data / "images").iterdir())[2]
    before = other.read_bytes()
    other.write_bytes(before + b"\n")
    assert main([*command, "--resume", "--skip-broken"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"gs-train: error: rank 0: {data} must hold the photographs that ")
    other.write_bytes(before)
    assert main([*command, "--resume", "--skip-broken"]) == 0


def test_python_does_not_start_ranks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gpus must be left out in Python"):
        gs_train.fit(data=tmp_path, out=tmp_path / "run", gpus="2")


def test_a_run_of_one_gpu_is_that_of_no_option(
    tiny_capture: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = ["fit", str(tiny_capture), "--out", str(out), "--renderer", "cpu", "--steps", "1"]
    assert main([*command, "--gpus", "1", "--cap", "200"]) == 0
    assert "processes" not in capfd.readouterr().err
    assert "gpus: null" in (out / "config.yml").read_text()
