# SPDX-License-Identifier: Apache-2.0
"""A crop of a scene on a drive reads the blocks that reach into the crop, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tide_runs import FEW, N_ROWS, fitted

from gs_train.blocks.stored_rows import StoredRows
from gs_train.cli import main
from gs_train.files.ply import load_ply
from gs_train.runs.run import Run
from gs_train.tide.model import StoredModel


@pytest.fixture(scope="module")
def run(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted(tiny_capture, tmp_path_factory.mktemp("tide") / "run", *FEW)


@pytest.fixture(scope="module")
def means(run: Path) -> np.ndarray:
    (ply,) = run.glob("point_cloud/*/point_cloud.ply")
    return load_ply(ply)["means"].double().numpy()


def boxes(means: np.ndarray, n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """From one of the rows to another: bounds that rows lie on."""
    chance = np.random.default_rng(0)
    pairs = [means[chance.choice(len(means), 2, replace=False)] for _ in range(n)]
    return [(pair.min(0), pair.max(0)) for pair in pairs]


def export(run: Path, to: Path, low: np.ndarray, high: np.ndarray, *more: str) -> int:
    crop = [repr(float(value)) for value in (*low, *high)]
    return main(["export", str(run), "--to", str(to), "--crop", *crop, *more])


@pytest.mark.parametrize("frame", ["capture", "local"])
def test_a_crop_holds_every_row_within(
    run: Path, means: np.ndarray, tmp_path: Path, capfd: pytest.CaptureFixture[str], frame: str
) -> None:
    shift = 0.0
    if frame == "local":
        assert main(["export", str(run), "--to", str(tmp_path / "all"), "--frame", "local"]) == 0
        (ply,) = (tmp_path / "all").rglob("*.ply")
        shift = load_ply(ply)["means"].double().numpy()[0] - means[0]
    n_cropped = 0
    for k, (low, high) in enumerate(boxes(means + shift, 8)):
        to = tmp_path / str(k)
        assert export(run, to, low, high, "--frame", frame) == 0
        (ply,) = to.rglob("*.ply")
        found = load_ply(ply)["means"].double().numpy()
        inside = ((means + shift >= low) & (means + shift <= high)).all(1)
        assert abs(len(found) - inside.sum()) <= 2 * (frame == "local")  # rows on the bounds
        assert f"without {N_ROWS - len(found):,} outside --crop" in capfd.readouterr().err
        n_cropped += N_ROWS - len(found)
    assert n_cropped


def test_blocks_outside_of_a_crop_are_not_read(
    run: Path, means: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    pieces = StoredRows.pieces

    def counted(rows: StoredRows, blocks: np.ndarray | None = None, **options: Any) -> Any:
        read.append(len(rows.store.blocks) if blocks is None else len(blocks))
        return pieces(rows, blocks, **options)

    monkeypatch.setattr(StoredRows, "pieces", counted)
    corner = means[means.sum(1).argmin()]
    assert export(run, tmp_path / "part", corner - 1e-3, corner + 1e-3) == 0
    surveyed = read[-2:]  # by the survey, and by the writer
    assert surveyed[0] == surveyed[1] < 6 < -(-N_ROWS // 32)


def test_a_crop_without_rows_names_where_all_of_them_lie(
    run: Path, means: np.ndarray, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    far = means.max(0) + 100.0
    assert export(run, tmp_path / "far", far, far + 1.0) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    low, high = (" ".join(f"{value:g}" for value in ends) for ends in (means.min(0), means.max(0)))
    assert f"all {N_ROWS} lie in {low} to {high}" in line


def test_boxes_reach_what_their_rows_do(run: Path, means: np.ndarray) -> None:
    _, model = Run.open(run).read(torch.device("cpu"))
    assert isinstance(model, StoredModel)
    every = model.reaching((-1e9, -1e9, -1e9), (1e9, 1e9, 1e9))
    assert every.n_rows == N_ROWS
    assert model.reaching((1e9, 0.0, 0.0), (2e9, 1.0, 1.0)).n_rows == 0
    model.close()
