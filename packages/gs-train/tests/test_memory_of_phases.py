# SPDX-License-Identifier: Apache-2.0
"""Memory that runs out in a phase that is not drawing: one line names the phase and what to give,
and the last checkpoint goes on to the bits of a run without trouble."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tide_runs import assert_same, saved

from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.cli import main
from gs_train.data.synthetic import write_demo_capture
from gs_train.runs.trainer import Trainer

STEPS, SAVED = 4, 2
PRESETS = ["none", "naive", "clm", "gs-scale", "best", "tide"]
PLACEMENTS = (
    "engine.slots:SlotPlacement",
    "published.mirror:MirrorPlacement",
    "published.streamed:StreamedPlacement",
    "tide.placement:BlockPlacement",
)
UPDATES = tuple(f"gs_train.{name}.update" for name in PLACEMENTS)


class Phase(NamedTuple):
    """Where memory runs out.

    Attributes:
        work: as the line names it.
        points: functions and methods of which the first call is then.
        begun: steps that have begun before.
        done: steps that the line says have been done.
    """

    work: str
    points: tuple[str, ...]
    begun: int
    done: int


PHASES = [
    Phase("the photographs of a batch", ("gs_train.runs.loop:ImageFeed.next",), 3, 3),
    Phase("a batch", ("gs_train.engine.engine:Engine.step",), 4, 3),
    Phase("the optimizer's update", UPDATES, 4, 3),
    Phase("a refinement of rows", ("gs_train.densify.adc:Adc.after_step",), 4, 3),
    Phase("the sorting of rows", ("gs_train.runs.trainer:sort_rows",), 4, 4),
    Phase("a checkpoint", ("gs_train.runs.saver:checkpoint_state",), 4, 4),
]
ERRORS = {
    "device": torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "host": MemoryError("page-locked memory of 2147483648 bytes is not there"),
}


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "capture"
    return write_demo_capture(folder, n_views=6, width=32, height=24)


def _command(capture: Path, out: Path, preset: str) -> list[str]:
    batch_size = 1 if preset == "gs-scale" else 2
    options = f"--renderer cpu --steps {STEPS} --sh-degree 1 --batch-size {batch_size}"
    if preset == "tide":
        options += " --strategy fixed --cap 600 --block-rows 32 --tide.slots 6 --tide.arena 64kB"
    else:
        refines = f"--adc.refine-start 0 --adc.refine-every {batch_size} --adc.grow-grad2d 1e-7"
        options += f" --resort-every 0.000001 {refines}"
    options += f" --checkpoint-every {SAVED} --offload {preset}"
    return ["fit", str(capture), "--out", str(out), *options.split()]


def _break(patch: pytest.MonkeyPatch, phase: Phase, error: Exception) -> None:
    """Have memory run out at the first call of any of the phase's points, once."""
    begun, errors = [0], [error]
    train_step = Trainer.train_step

    def counted(trainer: Trainer, *arguments: Any, **options: Any) -> Any:
        begun[0] += 1
        return train_step(trainer, *arguments, **options)

    def broken(function: Any) -> Any:
        @functools.wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            if begun[0] >= phase.begun and errors:
                raise errors.pop()
            return function(*arguments, **options)

        return called

    patch.setattr(Trainer, "train_step", counted)
    for point in phase.points:
        module, _, path = point.partition(":")
        *holders, name = path.split(".")
        holder: Any = functools.reduce(getattr, holders, importlib.import_module(module))
        patch.setattr(holder, name, broken(getattr(holder, name)))


def _tensors(out: Path) -> dict[str, torch.Tensor]:
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    checkpoint = load_checkpoint(newest)
    assert checkpoint.step == STEPS
    return dict(checkpoint.tensors)


@functools.cache
def _undisturbed(capture: Path, preset: str) -> Path:
    out = capture.parent / preset
    assert main(_command(capture, out, preset)) == 0
    return out


def _cases() -> list[Any]:
    cases = []
    for preset in PRESETS:
        for phase in PHASES:
            is_of_growth = phase.work in ("a refinement of rows", "the sorting of rows")
            for memory in ERRORS:
                if preset == "tide" and is_of_growth:
                    continue
                is_short = preset == "best" and memory == "device"
                marks = [] if is_short else [pytest.mark.long]
                name = f"{preset}-{memory}-{phase.work}"
                cases.append(pytest.param(preset, phase, memory, id=name, marks=marks))
    return cases


@pytest.mark.parametrize(("preset", "phase", "memory"), _cases())
def test_the_line_names_the_phase_and_the_last_checkpoint_goes_on_to_the_same_bits(
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    preset: str,
    phase: Phase,
    memory: str,
) -> None:
    out, error = tmp_path / "run", ERRORS[memory]
    with monkeypatch.context() as patch:
        _break(patch, phase, type(error)(*error.args))
        assert main(_command(capture, out, preset)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"gs-train: error: {memory} memory ran out after step {phase.done}, ")
    assert f" Gaussians, in {phase.work} ({error}); " in line
    assert f"go on from the checkpoint of step {SAVED} with --resume" in line
    assert f"(a larger --{memory}-memory) or another --offload" in line
    assert main(["fit", str(capture), "--out", str(out), "--resume"]) == 0
    expected = _undisturbed(capture, preset)
    if preset == "tide":
        assert_same(saved(out), saved(expected))
        return
    ours, theirs = _tensors(out), _tensors(expected)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_without_a_checkpoint_the_line_says_what_to_start_again_with(
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = Phase("the optimizer's update", UPDATES, 1, 0)
    _break(monkeypatch, first, ERRORS["device"])
    assert main(_command(capture, tmp_path / "run", "none")) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "start again with a smaller --cap or --batch-size, more memory (a larger" in line
    assert not (tmp_path / "run").exists()
