# SPDX-License-Identifier: Apache-2.0
"""``fit --more-steps``: a finished run goes on with the learning rates that it ended with."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from one_thread import one_threaded

from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.cli import main
from gs_train.options.config_file import load_config
from gs_train.options.schedule import means_decay

OPTIONS = [
    *("--renderer", "cpu", "--batch-size", "2", "--adc.refine-start", "2", "--max-side", "32"),
    *("--adc.refine-every", "4", "--adc.grow-grad2d", "1e-5", "--sh-every", "4", "--seed", "3"),
]
MCMC = [
    "--strategy",
    "mcmc",
    "--cap",
    "700",
    "--mcmc.refine-start",
    "2",
    "--mcmc.refine-every",
    "4",
]
Captured = pytest.CaptureFixture[str]


def _fit(capture: Path, out: Path, *options: str) -> int:
    return main(["fit", str(capture), "--out", str(out), *options])


def _tensors(out: Path, step: int) -> dict[str, torch.Tensor]:
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    checkpoint = load_checkpoint(newest)
    assert checkpoint.step == step
    return checkpoint.tensors


@pytest.fixture(scope="module")
def finished(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 3 steps."""
    out = tmp_path_factory.mktemp("more") / "run"
    assert _fit(tiny_capture, out, *OPTIONS, "--steps", "3") == 0
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize(
    "strategy",
    [
        [],
        pytest.param(MCMC, marks=pytest.mark.long),
        pytest.param(["--renderer", "raster"], marks=pytest.mark.gpu),
    ],
    ids=["adc", "mcmc", "raster"],
)
@one_threaded
def test_continued_twice_it_is_the_run_that_had_all_steps_and_the_same_decay(
    strategy: list[str], tiny_capture: Path, tmp_path: Path
) -> None:
    options = [*OPTIONS, *strategy]
    longer, whole = tmp_path / "longer", tmp_path / "whole"
    assert _fit(tiny_capture, longer, *options, "--steps", "3") == 0
    assert main(["fit", "--out", str(longer), "--more-steps", "2"]) == 0
    assert _fit(tiny_capture, longer, "--more-steps=1") == 0
    assert _fit(tiny_capture, whole, *options, "--steps", "6", "--decay-steps", "3") == 0
    ours, theirs = _tensors(longer, 6), _tensors(whole, 6)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def test_the_run_records_that_it_is_longer(run: Path) -> None:
    assert main(["fit", "--out", str(run), "--more-steps", "2"]) == 0
    config = load_config(run / "config.yml")
    assert (config.steps, config.decay_steps) == (5, 3)
    assert json.loads((run / "metrics.json").read_text())["steps"] == 5
    with open(run / "log.csv") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["3", "5"]
    assert (run / "point_cloud/iteration_5/point_cloud.ply").exists()


def test_rates_stay_where_the_decay_ended() -> None:
    assert means_decay(30, 30) == means_decay(31, 30) == means_decay(900, 30) == 0.01
    assert means_decay(0, 30) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--more-steps", "0"], "--more-steps must be at least 1, got 0"),
        (["--more-steps", "2", "--steps", "9"], "--more-steps and --steps exclude each other"),
        (["--more-steps", "2", "--decay-steps=9"], "--more-steps and --decay-steps exclude each"),
        (["--more_steps=2", "--decay_steps", "9"], "--more-steps and --decay-steps exclude each"),
        (["--more-steps", "2", "--overwrite"], "--more-steps and --overwrite exclude each other"),
        (["--more-steps", "2", "--seed", "4"], "must keep the run's options: seed was 3, got 4"),
        (
            ["--more-steps", "2", "--config", "x.yml"],
            "--config and --more-steps exclude each other: a run keeps its options",
        ),
    ],
)
def test_what_cannot_be_is_one_line(
    options: list[str], message: str, run: Path, capsys: Captured
) -> None:
    before = (run / "config.yml").read_bytes()
    assert main(["fit", "--out", str(run), *options]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert (run / "config.yml").read_bytes() == before


def test_a_run_that_is_not_finished_is_finished_first(run: Path, capsys: Captured) -> None:
    config = run / "config.yml"
    config.write_text(config.read_text().replace("steps: 3\n", "steps: 9\n", 1))
    assert main(["fit", "--out", str(run), "--more-steps", "2"]) == 2
    said = capsys.readouterr().err
    assert f"{run} is at step 3 of 9: finish it with --resume first" in said
    shutil.rmtree(run / "checkpoints")
    assert main(["fit", "--out", str(run), "--more-steps", "2"]) == 2
    assert "--more-steps needs a finished run, " in capsys.readouterr().err


def test_without_a_run_there_is_nothing_to_go_on_with(
    tiny_capture: Path, tmp_path: Path, capsys: Captured
) -> None:
    assert _fit(tiny_capture, tmp_path / "none", "--more-steps", "2") == 2
    assert "--more-steps needs a finished run in --out" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
