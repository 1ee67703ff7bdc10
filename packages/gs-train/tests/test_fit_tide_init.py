# SPDX-License-Identifier: Apache-2.0
"""Runs on a drive that begin with a cloud of their own, which never is in memory as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tide_runs import FEW, assert_same, fitted, saved
from transforms_files import write_points

from gs_train import Fitted
from gs_train.cli import main
from gs_train.clouds.making import place_of_making
from gs_train.rows.attributes import NAMES
from gs_train.runs.run import Run
from gs_train.tide.model import StoredModel


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("cloud") / "points.ply"
    points = chance.normal(0.0, 0.6, (900, 3)).astype(np.float32)
    write_points(path, points, chance.integers(0, 256, (900, 3)).astype(np.uint8))
    return path


@pytest.mark.parametrize(
    "cap", [("--cap", "5000"), ("--cap", "500")], ids=["all points", "some of them"]
)
def test_the_first_step_is_that_of_a_start_in_memory(
    tiny_capture: Path, cloud: Path, tmp_path: Path, cap: tuple[str, ...]
) -> None:
    options = ("--steps", "1", "--init", str(cloud), *cap)
    out = fitted(tiny_capture, tmp_path / "tide", *FEW, *options)
    theirs = Fitted.open(fitted(tiny_capture, tmp_path / "none", *options, offload="none"))
    _, model = Run.open(out).read(torch.device("cpu"))
    assert isinstance(model, StoredModel)
    keys, rows = zip(*model.rows.pieces(), strict=True)
    model.close()
    order = torch.cat(keys).argsort()
    for name, values in theirs.rows(frame="trained").items():
        ours = torch.cat([part[name] for part in rows])[order]
        assert len(ours) == min(900, int(cap[1]))
        assert torch.equal(ours, values), name
    assert set(NAMES) <= set(rows[0])
    assert not place_of_making(out / "store").exists()


def test_large_blocks_that_leave_memory_change_no_bit(tiny_capture: Path, tmp_path: Path) -> None:
    """More rows than other runs here have: blocks of 1,024 are more than there is memory for."""
    chance, n_rows, path = np.random.default_rng(5), 4166, tmp_path / "points.ply"
    points = chance.normal(0.0, 0.6, (n_rows, 3)).astype(np.float32)
    write_points(path, points, chance.integers(0, 256, (n_rows, 3)).astype(np.uint8))
    options = ("--init", str(path), "--cap", str(n_rows))
    small = ("--block-rows", "1024", "--tide.slots", "1", "--tide.arena", "600kB")
    ours = fitted(tiny_capture, tmp_path / "evicts", *options, *small)
    theirs = fitted(tiny_capture, tmp_path / "whole", *options, "--block-rows", "64")
    assert_same(saved(ours), saved(theirs))
    moved = json.loads((ours / "metrics.json").read_text())["store"]
    assert moved["blocks_evicted"] > 0
    assert moved["bytes_read"] > 0


def test_a_cloud_that_cannot_be_used_leaves_no_run(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "points.ply"
    write_points(path, np.zeros((50, 3), np.float32), np.zeros((50, 3), np.uint8))
    out = tmp_path / "run"
    arguments = ["fit", str(tiny_capture), "--out", str(out), "--offload", "tide"]
    arguments += ["--strategy", "fixed", "--renderer", "cpu", "--steps", "1", "--init", str(path)]
    assert main(arguments) == 2
    assert "must not all coincide" in capsys.readouterr().err
    assert not (out / "store").exists()
    assert not (out / "config.yml").exists()
