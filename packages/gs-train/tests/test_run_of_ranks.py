# SPDX-License-Identifier: Apache-2.0
"""A run whose newest checkpoint several ranks wrote, used by commands of one process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from saved_by_ranks import assert_same, by_key, part_of, saved
from threads_as_ranks import ThreadWorld, results
from torch import Tensor

from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.checkpoint.row_names import MEANS, STRANDS
from gs_train.cli import main
from gs_train.files.ply import load_ply
from gs_train.options.limits import UNLIMITED
from gs_train.options.presets import PRESETS
from gs_train.rows.own_rows import own_rows
from gs_train.rows.strands import Lattice
from gs_train.runs.point_cloud import write_point_cloud
from gs_train.runs.resumption import restored_trainer
from gs_train.runs.run import Run
from gs_train.sizing.choice import Choice

STEPS = 3
LATTICE = Lattice(0, 0)  # rows have labels: it is not asked


@pytest.fixture(scope="module")
def fitted(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one rank, with rows that sleep; not to be written to."""
    out = tmp_path_factory.mktemp("fitted") / "run"
    options = ["--renderer", "cpu", "--steps", str(STEPS), "--cap", "200", "--offload", "best"]
    assert main(["fit", str(tiny_capture), "--out", str(out), *options]) == 0
    return out


@pytest.fixture
def of_ranks(fitted: Path, tmp_path: Path) -> Path:
    """The same run as three ranks would have left it."""
    run = Path(shutil.copytree(fitted, tmp_path / "run"))
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    one = load_checkpoint(newest)
    labels = Lattice.of_cloud(one.tensors[MEANS]).labels(one.tensors[MEANS])
    assert len(labels.unique()) > 3
    assert "model/appearance.last_step" in one.tensors
    shutil.rmtree(newest)
    tensors = {**one.tensors, STRANDS: labels}
    saved(run / "checkpoints", tensors, 3, step=one.step, state=one.state)
    return run


def _newest(run: Path) -> dict[str, Tensor]:
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    return load_checkpoint(newest).tensors


def _as_a_set(rows: dict[str, Tensor]) -> list[list[float]]:
    table = torch.cat([values.reshape(len(values), -1) for values in rows.values()], 1)
    return sorted(table.tolist())


def test_it_is_inspected(of_ranks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(of_ranks), "--verify"]) == 0
    said = capsys.readouterr().out
    assert "strands     one for each Gaussian" in said
    assert "0000200000.safetensors" in said


def test_its_export_holds_the_same_rows(fitted: Path, of_ranks: Path, tmp_path: Path) -> None:
    exported = []
    for run in (fitted, of_ranks):
        to = tmp_path / "export" / run.parent.name
        assert main(["export", str(run), "--to", str(to)]) == 0
        (ply,) = to.rglob("*.ply")
        exported.append(_as_a_set(load_ply(ply)))
    assert exported[0] == exported[1]


def test_its_scores_are_the_same(fitted: Path, of_ranks: Path) -> None:
    """Views are drawn with ties of depth in the order of keys."""
    (of_ranks / "metrics.json").unlink()
    assert main(["eval", str(of_ranks), "--renderer", "cpu"]) == 0
    before, after = (json.loads((run / "metrics.json").read_text()) for run in (fitted, of_ranks))
    assert after["psnr"] == before["psnr"]
    assert after["ssim"] == before["ssim"]


@pytest.mark.parametrize("preset", ["none", "best"])
def test_one_rank_goes_on_to_the_same_bits(
    tiny_capture: Path, fitted: Path, of_ranks: Path, tmp_path: Path, preset: str
) -> None:
    left = []
    for run in (Path(shutil.copytree(fitted, tmp_path / "alone")), of_ranks):
        command = ["fit", str(tiny_capture), "--out", str(run), "--resume", "--offload", preset]
        assert main([*command, "--steps", str(STEPS + 3)]) == 0
        left.append(by_key(_newest(run)))
    assert STRANDS not in left[1]  # one rank has no use for them
    assert_same(*left)


@pytest.mark.parametrize("preset", ["none", "best"])
@pytest.mark.parametrize("n_ranks", [1, 2, 4])
def test_each_rank_restores_a_trainer_of_its_own_rows(
    of_ranks: Path, n_ranks: int, preset: str
) -> None:
    run = Run.open(of_ranks)
    renderer, choice = run.renderer("cpu"), Choice(PRESETS[preset], UNLIMITED, "")
    labels = run.checkpoint.read([STRANDS])
    whole = {**restored_trainer(run, renderer, run.config, choice).tensors(), **labels}
    for rank in range(n_ranks):
        own = own_rows(run.checkpoint, LATTICE, rank=rank, n_ranks=n_ranks)
        expected = part_of(whole, rank, n_ranks)
        del expected[STRANDS]
        assert torch.equal(run.geometry(own.ids)["means"], expected[MEANS])
        trainer = restored_trainer(run, renderer, run.config, choice, own=own)
        assert_same(trainer.tensors(), expected)


def test_the_point_cloud_of_ranks_holds_the_rows_of_all(
    fitted: Path, of_ranks: Path, tmp_path: Path
) -> None:
    run = Run.open(of_ranks)
    renderer, choice = run.renderer("cpu"), Choice(PRESETS["best"], UNLIMITED, "")
    models = []
    for rank in range(3):
        own = own_rows(run.checkpoint, LATTICE, rank=rank, n_ranks=3)
        models.append(restored_trainer(run, renderer, run.config, choice, own=own).model)
    said: list[str] = []
    ply = tmp_path / "all.ply"

    def write(world: ThreadWorld) -> None:
        model, frame = models[world.rank], run.frame
        write_point_cloud(ply, model, choice="auto", trained=frame, world=world, say=said.append)

    results(3, write)
    (alone,) = fitted.rglob("point_cloud.ply")
    assert _as_a_set(load_ply(ply)) == _as_a_set(load_ply(alone))
    (line,) = said
    assert line.startswith("Gaussians are written in the capture's frame")
