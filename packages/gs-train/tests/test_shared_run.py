# SPDX-License-Identifier: Apache-2.0
"""A run that ranks open together, beside a training that replaces its checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from threads_as_ranks import ThreadWorld, outcomes, results

from gs_train.checkpoint import latest_checkpoint
from gs_train.cli import main
from gs_train.errors import CommonError
from gs_train.rows.visible import all_rows
from gs_train.runs.run import Run
from gs_train.runs.shared_run import SharedRun

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def runs(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and the same some steps later; not to be written to."""
    first, later = (tmp_path_factory.mktemp("runs") / name for name in ("first", "later"))
    fit = ["fit", str(tiny_capture), "--renderer", "cpu", "--cap", "200", "--keep-checkpoints", "1"]
    assert main([*fit, "--out", str(first), "--steps", "2"]) == 0
    shutil.copytree(first, later)
    assert main([*fit, "--out", str(later), "--resume", "--steps", "3"]) == 0
    return first, later


@pytest.fixture
def run(runs: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the first to change."""
    return Path(shutil.copytree(runs[0], tmp_path / "run"))


def _reading(
    run: Path, read: Callable[[SharedRun], Any], meanwhile: Callable[[], object] = lambda: None
) -> Callable[[ThreadWorld], Any]:
    """What ranks do: open, let something happen, and read."""

    def work(world: ThreadWorld) -> Any:
        shared = SharedRun.open(run, world)  # type: ignore[arg-type]
        world.barrier()
        if world.rank == 0:
            meanwhile()
        world.barrier()
        model = read(shared)
        return shared.run.checkpoint.step, model.keys.values, all_rows(model)

    return work


def _strands(shared: SharedRun) -> Any:
    return shared.read(CPU)


def _checkpoint(run: Path) -> Path:
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    return newest


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_every_row_is_one_rank_s(run: Path, n_ranks: int) -> None:
    whole = Run.open(run).model(CPU)
    parts = results(n_ranks, _reading(run, _strands))
    keys = torch.cat([keys for _, keys, _ in parts])
    order, expected = keys.argsort(), whole.keys.values.argsort()
    assert torch.equal(keys[order], whole.keys.values[expected])
    for name, values in all_rows(whole).items():
        assert torch.equal(torch.cat([rows[name] for *_, rows in parts])[order], values[expected])
    assert all(len(keys) for _, keys, _ in parts)


def test_pieces_come_in_the_order_of_ranks(run: Path) -> None:
    parts = results(3, _reading(run, SharedRun.read_piece))
    for name, values in all_rows(Run.open(run).model(CPU)).items():
        assert torch.equal(torch.cat([rows[name] for *_, rows in parts]), values)


@pytest.mark.parametrize("read", [_strands, SharedRun.read_piece])
def test_a_checkpoint_that_a_training_replaces_is_left_for_the_next(
    runs: tuple[Path, Path], run: Path, read: Callable[[SharedRun], Any]
) -> None:
    def replace() -> None:
        newer = _checkpoint(runs[1])
        shutil.copytree(newer, run / "checkpoints" / newer.name)
        old = min((run / "checkpoints").iterdir())
        assert old.name != newer.name
        shutil.rmtree(old)

    parts = results(2, _reading(run, read, replace))
    assert [step for step, *_ in parts] == [3, 3]
    assert sum(len(keys) for _, keys, _ in parts) == Run.open(run).model(CPU).n_rows


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_checkpoint_that_is_damaged_or_gone_is_told_to_all(run: Path, is_gone: bool) -> None:
    def harm() -> None:
        if is_gone:
            shutil.rmtree(_checkpoint(run))
            return
        for file in _checkpoint(run).iterdir():
            if file.suffix != ".json":
                file.write_bytes(b"")

    found = outcomes(2, _reading(run, _strands, harm))
    assert [type(each) for each in found] == [CommonError] * 2
    assert len({str(each) for each in found}) == 1


def test_one_frame_is_found_for_all(run: Path) -> None:
    frames = results(2, lambda world: SharedRun.open(run, world).export_frame("auto"))  # type: ignore[arg-type]
    assert frames[0] == frames[1]
    assert frames[0].name == "capture"
