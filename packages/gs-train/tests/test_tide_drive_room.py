# SPDX-License-Identifier: Apache-2.0
"""A run on a drive begins where the drive has room for what its photographs may show."""

from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from transforms_files import write_points

from gs_train.blocks.new_store import NewStore
from gs_train.cli import main
from gs_train.files.ply import load_ply

Usage = namedtuple("Usage", "total used free")
N_NEAR, N_FAR = 2000, 3000
ROW_BYTES = 716


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Points before the cameras, and more of them where no camera looks."""
    chance = np.random.default_rng(0)
    near = chance.normal(0.0, 0.5, (N_NEAR, 3))
    far = chance.normal(0.0, 0.5, (N_FAR, 3)) + np.array([0.0, 0.0, 4000.0])
    points = np.concatenate([near, far]).astype(np.float32)
    path = tmp_path_factory.mktemp("cloud") / "points.ply"
    write_points(path, points, chance.integers(0, 256, points.shape).astype(np.uint8))
    return path


def command(capture: Path, cloud: Path, out: Path, *more: str) -> list[str]:
    options = "--offload tide --strategy fixed --renderer cpu --steps 2 --block-rows 256"
    return ["fit", str(capture), "--out", str(out), "--init", str(cloud), *options.split(), *more]


@pytest.mark.parametrize(
    ("free", "more", "message"),
    [
        (300_000, (), "for the store of the Gaussians"),
        (600_000, (), "for checkpoints and results"),
        (600_000, ("--no-point-cloud",), "Gaussians that photographs may show"),
    ],
    ids=["first rows", "results", "rows that are trained"],
)
def test_a_drive_that_is_too_small_leaves_no_run(
    tiny_capture: Path,
    cloud: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    free: int,
    more: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, free))
    out = tmp_path / "run"
    assert main(command(tiny_capture, cloud, out, *more)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"gs-train: error: the disk of {out}")
    assert message in line
    assert f"got {free:,}" in line
    assert not out.exists()


def test_rows_that_no_photograph_shows_need_no_room_to_train(
    tiny_capture: Path, cloud: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = ROW_BYTES * (N_NEAR + N_FAR) * 2 // 3
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, free))
    out = tmp_path / "run"
    assert main(command(tiny_capture, cloud, out, "--no-point-cloud")) == 0
    assert not (out / "point_cloud").exists()
    assert main(["export", str(out), "--to", str(tmp_path / "splats")]) == 0
    (file,) = (tmp_path / "splats").rglob("*.ply")
    assert len(load_ply(file)["means"]) == N_NEAR + N_FAR


def test_a_drive_that_becomes_full_at_the_start_leaves_no_run(
    tiny_capture: Path,
    cloud: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(NewStore, "finish", full)
    out = tmp_path / "run"
    assert main(command(tiny_capture, cloud, out)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"gs-train: error: the disk of the store {out}/store became full")
    assert line.endswith("free some space, or name another folder with --store")
    assert not out.exists()
