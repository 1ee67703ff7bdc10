# SPDX-License-Identifier: Apache-2.0
"""``eval``, ``render`` and ``export`` on several ranks, as the command line starts them, leave the
files of one rank."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gs_train.cli import main
from gs_train.data import write_demo_capture

OF_TWO_RANKS = {
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
OPTIONS = {"eval": "--renderer cpu", "render": "--renderer cpu", "export": ""}


@pytest.fixture(autouse=True)
def _nobody_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OF_TWO_RANKS, "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module", params=["one", "sleeping", "two"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of images that one thread does not score alone; rows that one rank left, that sleep, or that
    two ranks left. Not to be written to."""
    folder = tmp_path_factory.mktemp(request.param)
    capture = write_demo_capture(folder / "capture", n_views=12, width=192, height=108)
    of = {"one": "", "sleeping": "--offload best", "two": "--gpus 2"}[request.param]
    options = f"--renderer cpu --steps 4 --batch-size 2 --cap 3000 --test-every 3 {of}"
    out = folder / "run"
    assert main(["fit", str(capture), "--out", str(out), *options.split()]) == 0
    return out


def _main(command: str, run: Path, options: str) -> int:
    return main([command, str(run), *OPTIONS[command].split(), *options.split()])


@pytest.mark.long
def test_scores_are_those_of_one_rank(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    written = []
    for options in ("", "--gpus 2", "--gpus 3"):
        copy = Path(shutil.copytree(run, tmp_path / f"run{len(written)}"))
        for name in ("metrics.json", "comparison.png"):
            (copy / name).unlink()
        assert _main("eval", copy, options) == 0
        assert capfd.readouterr().err.count("PSNR") == 1
        results = json.loads((copy / "metrics.json").read_text())
        assert len(results["images"]) == 4
        written.append((results, (copy / "comparison.png").read_bytes()))
    assert written[1:] == written[:1] * 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "options", "n_ranks"),
    [
        ("render", "--frames 5 --path ellipse --to", 2),
        ("render", "--path test --to", 3),
        ("export", "--layout inria --to", 3),
        ("export", "--layout gsplat --to", 2),
        ("export", "--frame local --to", 2),
        ("export", "--layout spz --crop -.5 -.5 -1 1 1 1 --to", 3),
    ],
)
def test_files_are_those_of_one_rank(
    run: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    command: str,
    options: str,
    n_ranks: int,
) -> None:
    capfd.readouterr()
    for to, more in (("one", ""), ("all", f"--gpus {n_ranks}")):
        assert _main(command, run, f"{options} {tmp_path / to} {more}") == 0
        assert capfd.readouterr().err.count("wrote ") == 1
    _assert_same_files(tmp_path / "all", tmp_path / "one")


def _assert_same_files(ours: Path, theirs: Path) -> None:
    names = [{str(p.relative_to(d)) for p in d.rglob("*") if p.is_file()} for d in (ours, theirs)]
    assert names[0] == names[1] != set()
    for name in names[0]:
        if name.endswith(".pt"):
            mine, other = (torch.load(at / name)["splats"] for at in (ours, theirs))
            assert mine.keys() == other.keys()
            assert all(torch.equal(mine[key], other[key]) for key in mine)
        elif name != "cfg_args":  # which has the folder
            assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


@pytest.mark.gpu
@pytest.mark.gpu2
def test_two_gpus_leave_the_files_of_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capture = write_demo_capture(tmp_path / "capture", n_views=12, width=192, height=108)
    run, raster = tmp_path / "run", "--renderer raster"
    options = f"{raster} --steps 4 --batch-size 2 --cap 3000 --test-every 3 --gpus 2"
    assert main(["fit", str(capture), "--out", str(run), *options.split()]) == 0
    scores = [json.loads((run / "metrics.json").read_text())["images"]]
    for to, more in (("one", ""), ("all", "--gpus 2")):
        render = f"render {run} {raster} --frames 5 --to {tmp_path / to} {more}"
        assert main(render.split()) == 0
        assert main(f"eval {run} {raster} {more}".split()) == 0
        scores.append(json.loads((run / "metrics.json").read_text())["images"])
    capfd.readouterr()
    _assert_same_files(tmp_path / "all", tmp_path / "one")
    assert scores[1:] == scores[:1] * 2


@pytest.mark.long
def test_a_video_has_the_frames_of_one_rank(run: Path, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    videos = []
    for to, more in (("one", ""), ("all", "--gpus 2")):
        assert _main("render", run, f"--frames 5 --to {tmp_path / to}.mp4 {more}") == 0
        with av.open(str(tmp_path / f"{to}.mp4")) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        videos.append(np.stack(frames).astype(int))
    assert videos[0].shape == videos[1].shape == (5, 108, 192, 3)
    # The encoder's bytes may differ, on one rank too; neighbouring frames differ by far more.
    assert np.abs(videos[0] - videos[1]).mean() < 1
    assert np.abs(np.diff(videos[0], axis=0)).mean((1, 2, 3)).min() > 3


@pytest.mark.long
def test_torchrun_starts_ranks_as_well(run: Path, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    options = ["--renderer", "cpu", "--frames", "3", "--to"]
    command = ["-m", "gs_train", "render", str(run), *options, str(tmp_path / "all")]
    done = subprocess.run([*torchrun, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("wrote 3 frames") == 1
    assert main(["render", str(run), *options, str(tmp_path / "one")]) == 0
    _assert_same_files(tmp_path / "all", tmp_path / "one")


@pytest.mark.long
def test_a_photograph_that_is_gone_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capture = write_demo_capture(tmp_path / "capture", n_views=6, width=32, height=24)
    out = tmp_path / "run"
    options = ["--renderer", "cpu", "--steps", "1", "--cap", "50", "--test-every", "2"]
    assert main(["fit", str(capture), "--out", str(out), *options]) == 0
    before = (out / "metrics.json").read_bytes()
    sorted((capture / "images").iterdir())[2].unlink()
    capfd.readouterr()
    assert _main("eval", out, "--gpus 2") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("gs-train: error: rank 0: ")
    assert "1 missing" in line
    assert (out / "metrics.json").read_bytes() == before


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("eval RUN --renderer gsplat --gpus 2", "--gpus needs CUDA devices, there are none here"),
        ("eval RUN --renderer cpu --gpus 0", "--gpus must be a number of at least 1, or all, got"),
        ("render RUN --renderer cpu --gpus all", "--gpus must be a number with --renderer cpu"),
        ("export RUN --gpus 257", "--gpus must be at most"),
    ],
)
def test_what_cannot_be_is_refused(
    capfd: pytest.CaptureFixture[str], command: str, message: str
) -> None:
    if "gsplat" in command and torch.cuda.is_available():
        message = "--gpus must be at most" if torch.cuda.device_count() < 2 else "--renderer gsplat"
    assert main(command.split()) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"gs-train: error: {message}")


@pytest.mark.long
def test_trouble_of_all_ranks_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path / "nothing"), "--gpus", "2"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("gs-train: error: rank 0: ")
    assert "must be the output folder of a run, and does not exist" in line


def _as_rank(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    for name, value in (OF_TWO_RANKS | {"RANK": str(rank), "LOCAL_RANK": str(rank)}).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("command", ["plan", "check"])
def test_one_rank_carries_out_what_is_for_one_process(
    tiny_capture: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    said = []
    for rank in (1, 0):
        _as_rank(monkeypatch, rank)
        assert main([command, str(tiny_capture)]) == 0
        said.append(capfd.readouterr().out)
    assert said[0] == ""
    assert said[1] != ""


@pytest.mark.parametrize(
    "line",
    ["fit --stepz 3", "paint", "plan a-capture --gpus", "eval --help"],
    ids=lambda line: line,
)
def test_one_rank_speaks_of_the_command_line(
    line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ends, said = [], []
    for rank in (1, 0):
        _as_rank(monkeypatch, rank)
        try:
            ends.append(main(line.split()))
        except SystemExit as end:
            ends.append(end.code or 0)
        told = capfd.readouterr()
        said.append(told.out + told.err)
    assert ends[0] == ends[1] == (0 if "--help" in line else 2)
    assert said[0] == ""
    assert said[1] != ""
