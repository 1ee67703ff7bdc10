# SPDX-License-Identifier: Apache-2.0
"""How runs on a drive end when they are killed or stopped: they go on to the same bits."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tide_runs import FEW, STEPS, assert_same, command, fitted, saved

from gs_train.checkpoint import latest_checkpoint, open_checkpoint
from gs_train.cli import main
from gs_train.errors import InputError
from gs_train.runs.named_snapshots import named_snapshots
from gs_train.runs.trainer import Trainer
from gs_train.tide.model import StoredModel
from gs_train.tide.store_folder import identity_of

_EVERY = ("--checkpoint-every", "2")

ONE = ("--block-rows", "64", "--tide.slots", "1", "--tide.arena", "64kB")
"""Blocks of twice as many rows as `FEW` has, of which one is on the device."""

_KILLED = """
import os, signal, sys, torch
{imports}
torch.set_num_threads(1)
left = {at}

def killed(*arguments, **options):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return call(*arguments, **options)

call = {owner}.{name}
{owner}.{name} = killed
from gs_train.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""A command that kills itself before a call of something."""

_MOMENTS = {
    "a step": ("from gs_train.runs.trainer import Trainer", "Trainer", "train_step"),
    "an update": ("from gs_train.blocks.stored_rows import StoredRows", "StoredRows", "update"),
    "a snapshot": ("from gs_pinned import BlockStore", "BlockStore", "snapshot"),
    "a checkpoint": ("import gs_train.runs.saver as saver", "saver", "save_by_ranks"),
    "the end": ("import gs_train.runs.training as training", "training", "write_point_cloud"),
}


def _kill(arguments: list[str], moment: str, at: int) -> int:
    """Run a command that kills itself before the so many-th such moment; returns its status."""
    imports, owner, name = _MOMENTS[moment]
    code = _KILLED.format(imports=imports, owner=owner, name=name, at=at)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, check=False
    ).returncode


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def whole(_one_thread: None, tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody kills."""
    return fitted(tiny_capture, tmp_path_factory.mktemp("whole") / "run", *FEW, *_EVERY)


def _assert_goes_on(capture: Path, out: Path, whole: Path) -> None:
    """With the memory that the run began with."""
    assert main(["fit", str(capture), "--out", str(out), "--resume"]) == 0
    assert_same(saved(out), saved(whole))
    named = named_snapshots(out / "checkpoints")
    there = {int(path.name.removeprefix("snap-")) for path in (out / "store").glob("snap-*")}
    assert named <= there
    assert not list((out / "store").glob("*.tmp"))


@pytest.mark.parametrize(
    ("moment", "at", "memory"),
    [
        ("a checkpoint", 2, FEW),
        pytest.param("a snapshot", 3, FEW, marks=pytest.mark.long),
        pytest.param("an update", 5, FEW, marks=pytest.mark.long),
        pytest.param("the end", 1, FEW, marks=pytest.mark.long),
        ("an update", 4, ONE),
        *(
            pytest.param(moment, at, ONE, marks=pytest.mark.long)
            for moment, at in (("a checkpoint", 2), ("a snapshot", 3), ("the end", 1))
        ),
    ],
)
def test_a_run_that_is_killed_goes_on_to_the_same_bits(
    tiny_capture: Path, tmp_path: Path, whole: Path, moment: str, at: int, memory: tuple[str, ...]
) -> None:
    """The bits do not follow the memory, so that one run that nobody kills is enough."""
    out = tmp_path / "run"
    assert _kill(command(tiny_capture, out, *memory, *_EVERY), moment, at) == -signal.SIGKILL
    _assert_goes_on(tiny_capture, out, whole)


def test_a_run_that_is_killed_in_its_first_step_keeps_its_store(
    tiny_capture: Path, tmp_path: Path, whole: Path
) -> None:
    """However rarely checkpoints are written: making the store may have taken an hour."""
    out = tmp_path / "run"
    assert _kill(command(tiny_capture, out, *FEW), "an update", 1) == -signal.SIGKILL
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    assert open_checkpoint(newest).step == 0
    made = identity_of(out / "store")
    assert main(["eval", str(out), "--renderer", "cpu"]) == 0
    assert json.loads((out / "metrics.json").read_text())["steps"] == 0
    _assert_goes_on(tiny_capture, out, whole)
    assert identity_of(out / "store") == made


def test_an_error_in_the_first_step_keeps_the_store(
    tiny_capture: Path, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the run begins, and when it goes on from there."""
    out = tmp_path / "run"
    again = ["fit", str(tiny_capture), "--out", str(out), "--resume"]
    with monkeypatch.context() as failing:
        failing.setattr(Trainer, "train_step", _refuses)
        assert main(command(tiny_capture, out, *FEW)) == 2
        made = identity_of(out / "store")
        assert made is not None
        assert main(again) == 2
    _assert_goes_on(tiny_capture, out, whole)
    assert identity_of(out / "store") == made


def _refuses(*_: object, **__: object) -> None:
    raise InputError("a photograph cannot be read")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_a_run_that_is_killed_again_and_again_goes_on_to_the_same_bits(
    tiny_capture: Path, tmp_path: Path, whole: Path, seed: int
) -> None:
    rng, out = random.Random(seed), tmp_path / "run"
    memory = (FEW, ONE)[seed % 2]
    arguments = command(tiny_capture, out, *memory, *_EVERY)
    for _ in range(rng.randint(2, 5)):
        moment = rng.choice(list(_MOMENTS))
        _kill(arguments, moment, rng.randint(1, 6))
        if latest_checkpoint(out / "checkpoints") is not None:
            arguments = ["fit", str(tiny_capture), "--out", str(out), "--resume"]
        elif out.exists():
            arguments = command(tiny_capture, out, *memory, *_EVERY, "--overwrite")
    if arguments[-1] != "--resume":
        assert main(arguments) == 0
    _assert_goes_on(tiny_capture, out, whole)


def _interrupts(call: Callable[..., Any], at: int) -> Callable[..., Any]:
    left = at

    def interrupted(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return call(*arguments, **options)

    return interrupted


@pytest.mark.parametrize(
    ("owner", "name", "at", "step"),
    [
        (Trainer, "train_step", 5, 5),
        pytest.param(StoredModel, "begin_saving", 2, 2, marks=pytest.mark.long),
        pytest.param(StoredModel, "foresee", 1, 1, marks=pytest.mark.long),
    ],
)
def test_a_stop_saves_the_step_and_the_run_goes_on(
    tiny_capture: Path,
    tmp_path: Path,
    whole: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    at: int,
    step: int,
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as stopped:
        stopped.setattr(owner, name, _interrupts(getattr(owner, name), at))
        assert main(command(tiny_capture, out, *FEW, *_EVERY)) == 143
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    assert open_checkpoint(newest).step in (step, step + 1)
    _assert_goes_on(tiny_capture, out, whole)


def test_a_stop_while_the_store_is_made_leaves_nothing(
    tiny_capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from gs_train.tide.store_use import StoreUse

    out = tmp_path / "run"
    monkeypatch.setattr(StoreUse, "create", _interrupts(StoreUse.create, 1))
    assert main(command(tiny_capture, out, *FEW)) == 143
    assert "stopped during the writing of the store" in capsys.readouterr().err
    assert not any(path.name != "cache" for path in out.glob("*"))


@pytest.mark.parametrize("error", [InputError("no bytes free"), MemoryError()])
def test_a_store_whose_first_checkpoint_has_no_room_goes_with_its_run(
    tiny_capture: Path, tmp_path: Path, whole: Path, error: Exception
) -> None:
    """Nothing is in the way of the same command, once there is room."""
    out = tmp_path / "run"

    def has_no_room(*_: object, **__: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as full:
        full.setattr("gs_train.runs.saver.save_by_ranks", has_no_room)
        assert main(command(tiny_capture, out, *FEW)) == 2
    assert not any(path.name != "cache" for path in out.glob("*"))
    assert main(command(tiny_capture, out, *FEW)) == 0
    assert_same(saved(out), saved(whole))


def test_snapshots_without_a_checkpoint_are_given_up(
    tiny_capture: Path, tmp_path: Path, whole: Path
) -> None:
    """However often a run dies between a snapshot and its checkpoint."""
    out = tmp_path / "run"
    fitted(tiny_capture, out, *FEW, "--steps", "3", "--decay-steps", str(STEPS))
    for _ in range(3):
        with pytest.MonkeyPatch.context() as dying:
            dying.setattr("gs_train.runs.saver.save_by_ranks", _dies)
            arguments = ["fit", str(tiny_capture), "--out", str(out), "--resume"]
            assert main([*arguments, "--steps", "4"]) == 1
    assert len(list((out / "store").glob("snap-*"))) <= 3
    resumed = ["fit", str(tiny_capture), "--out", str(out), "--resume", "--steps", str(STEPS)]
    assert main(resumed) == 0
    assert_same(saved(out), saved(whole))


def _dies(*_: object, **__: object) -> None:
    raise ZeroDivisionError
