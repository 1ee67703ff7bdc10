# SPDX-License-Identifier: Apache-2.0
"""A run that was saved and restored in the middle, and hints about what comes next."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from one_thread import one_threaded
from scripted import Script, ScriptedRenderer, signed, small_rings
from scripted_runs import BLANK, scripted_config
from street import EXTENT, drive, street_rows, street_views
from torch import Tensor

from gs_train.options.config import FitConfig
from gs_train.options.limits import Limits
from gs_train.options.presets import PRESETS
from gs_train.options.schedule import LearningRates
from gs_train.rows.attributes import NAMES
from gs_train.runs.trainer import Trainer

STEPS, MIDDLE = 32, 19
ROWS = signed(street_rows(4000, sh_degree=2))
VIEWS = street_views(width=64, height=48)
SCRIPT = Script(VIEWS, ROWS)
LIMITS = Limits(rows=80)  # some views are cut
RUNS = [(preset, strategy, 1) for preset in PRESETS for strategy in ("adc", "mcmc")]
RUNS += [("clm", "adc", 4), ("best", "mcmc", 4)]
# Of `best`: the host updates, in few slots; some batches stay on the device, or nearly all.
PATHS = [
    ("adc", 1, Limits(residents=0)),
    ("mcmc", 4, Limits(residents=0, slots=200, rows=60)),
    ("adc", 1, Limits(residents=95, rows=80)),
    ("adc", 4, Limits(residents=330, rows=80)),
    ("mcmc", 4, Limits(residents=330)),
]


@pytest.fixture(autouse=True)
def _small_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    small_rings(monkeypatch)


def _config(strategy: str, batch_size: int) -> FitConfig:
    """As in the long runs, but with everything earlier, and rows that move out of sight."""
    config = scripted_config(strategy, batch_size)
    b = batch_size
    return dataclasses.replace(
        config,
        resort_every=0.02,
        adc=dataclasses.replace(config.adc, refine_start=5 * b, refine_every=12 * b, cap=4300),
        mcmc=dataclasses.replace(
            config.mcmc, refine_start=5 * b, refine_every=12 * b, cap_max=4300
        ),
        lr=LearningRates(means=2e-3, opacities=1e-2),
    )


def _new(config: FitConfig, preset: str, limits: Limits = LIMITS) -> Trainer:
    return Trainer(
        config,
        ROWS,
        renderer=ScriptedRenderer(SCRIPT),
        extent=EXTENT,
        preset=PRESETS[preset],
        limits=limits,
    )


def _resumed(
    config: FitConfig, preset: str, saved: dict[str, Tensor], step: int, limits: Limits = LIMITS
) -> Trainer:
    return Trainer.restore(
        config,
        saved,
        step=step,
        renderer=ScriptedRenderer(SCRIPT),
        extent=EXTENT,
        preset=PRESETS[preset],
        limits=limits,
    )


def _train(trainer: Trainer, stop: int, *, hints: str = "right") -> None:
    steps = drive(STEPS, trainer.config.batch_size)
    while trainer.step < stop:
        step = trainer.step
        assert isinstance(trainer.renderer, ScriptedRenderer)
        trainer.renderer.step = step
        upcoming = steps[step + 1 : step + 3]
        if hints == "none":
            upcoming = []
        elif hints == "wrong" and upcoming:
            first = upcoming[0]
            others = [(i + 7) % len(VIEWS) for i in first]
            wrong = [others, first[::-1], first[:1], [*first, 3, 3], []][step % 5]
            # The next batch, the one after it, or both.
            upcoming = [[wrong, first], [first, wrong], [wrong]][step % 3]
        trainer.train_step(
            [(VIEWS[i], BLANK) for i in steps[step]],
            [[VIEWS[i] for i in following] for following in upcoming],
        )


def _close(trainer: Trainer) -> None:
    if trainer.preset.placement == "split":
        trainer.model.close()  # type: ignore[attr-defined]


def _copied(trainer: Trainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.tensors().items()}


@pytest.mark.parametrize(("preset", "strategy", "batch_size"), RUNS)
@one_threaded
def test_a_run_resumed_in_the_middle_leaves_the_same_bytes(
    preset: str, strategy: str, batch_size: int
) -> None:
    config = _config(strategy, batch_size)
    whole = _new(config, preset)
    _train(whole, MIDDLE)
    saved = _copied(whole)
    if PRESETS[preset].semantics == "deferred":
        last = saved["model/appearance.last_step"]
        assert (last < MIDDLE - 10).any(), "rows must be asleep in what is saved"
    _train(whole, STEPS)
    resumed = _resumed(config, preset, saved, MIDDLE)
    _train(resumed, STEPS)
    ours, theirs = resumed.tensors(), whole.tensors()
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert torch.equal(ours[name], theirs[name]), name
    _close(whole)
    _close(resumed)


@pytest.mark.parametrize(("strategy", "batch_size", "limits"), PATHS)
@one_threaded
def test_best_resumes_with_the_same_bytes_on_either_path(
    strategy: str, batch_size: int, limits: Limits
) -> None:
    config = _config(strategy, batch_size)
    whole = _new(config, "best", limits)
    saved, resides = {}, set()
    for stop in range(1, STEPS + 1):
        _train(whole, stop)
        resides.add(whole.backend.is_resident)  # type: ignore[attr-defined]
        if stop in (11, 14, MIDDLE, 28):  # before and after refinement and re-sorting
            saved[stop] = _copied(whole)
    assert resides == ({False, True} if limits.residents else {False})
    for stop, tensors in saved.items():
        resumed = _resumed(config, "best", tensors, stop, limits)
        _train(resumed, STEPS)
        ours, theirs = resumed.tensors(), whole.tensors()
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert torch.equal(ours[name], theirs[name]), (stop, name)
        _close(resumed)
    _close(whole)


@pytest.mark.parametrize("preset", ["clm", "gs-scale", "best"])
@one_threaded
def test_saving_does_not_change_what_follows(preset: str) -> None:
    """What is saved is saved as it is: no row is brought up to date for it."""
    config = _config("adc", 1)
    straight, saving = _new(config, preset), _new(config, preset)
    _train(straight, STEPS)
    for stop in (*range(5, STEPS, 5), STEPS):
        _train(saving, stop)
        saving.tensors()
    ours, theirs = saving.tensors(), straight.tensors()
    for name in theirs:
        assert torch.equal(ours[name], theirs[name]), name
    _close(saving)
    _close(straight)


@pytest.mark.parametrize(("preset", "batch_size"), [("clm", 4), ("gs-scale", 1), ("best", 4)])
@one_threaded
def test_what_is_said_to_come_next_changes_nothing(preset: str, batch_size: int) -> None:
    config = _config("adc", batch_size)
    told = _new(config, preset)
    _train(told, STEPS)
    assert told.model.n_rows != len(ROWS["means"]), "densification must have happened"
    for hints in ("none", "wrong"):
        other = _new(config, preset)
        _train(other, STEPS, hints=hints)
        _assert_same(other, told)
        _close(other)
    _close(told)


@pytest.mark.parametrize("stop", [16, 17])  # the next batch was foretold wrongly; the one after it
@pytest.mark.parametrize(("preset", "batch_size"), [("gs-scale", 1), ("best", 4)])
@one_threaded
def test_a_run_that_was_told_wrongly_resumes_with_the_batches_that_come(
    preset: str, batch_size: int, stop: int
) -> None:
    config = _config("adc", batch_size)
    told, wrong = _new(config, preset), _new(config, preset)
    _train(told, STEPS)
    _train(wrong, stop, hints="wrong")
    saved = _copied(wrong)
    resumed = _resumed(config, preset, saved, stop)
    _train(resumed, STEPS)
    _assert_same(resumed, told)
    for trainer in (told, wrong, resumed):
        _close(trainer)


def _assert_same(ours: Trainer, theirs: Trainer) -> None:
    ours.backend.finish()
    theirs.backend.finish()
    for name in NAMES:
        assert torch.equal(ours.model.read(name), theirs.model.read(name)), name
