# SPDX-License-Identifier: Apache-2.0
"""Presets on a real capture: scripted gradients along its cameras, and one batch more of a fit."""

import functools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import scripted_runs
import torch
from one_thread import one_threaded
from photographed import FOX
from scripted import Script, signed
from street import drive
from torch import Tensor

from gs_train.cli import main
from gs_train.data.capture import load_capture
from gs_train.options.limits import Limits
from gs_train.options.schedule import LearningRates
from gs_train.rows.attributes import NAMES
from gs_train.runs.run import Run
from gs_train.scene.initialize import rows_from_points
from gs_train.scene.scene import Scene

STEPS = 12
OPTIONS = ["--renderer", "cpu", "--max-side", "160", "--seed", "4", "--sh-every", "4"]
# Every view sees most of this scene. Cut into crops it would add its pixels in another order, whose
# rounding Adam's first steps blow up; test_engine_photographs bounds it where views are cut.
OPTIONS += ["--mem-limit", "1.0"]

pytestmark = pytest.mark.skipif(not FOX.is_dir(), reason=f"needs the capture {FOX} (set GS_DATA)")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A run of `none` by batch size, made once."""
    root = tmp_path_factory.mktemp("fox")

    def run(batch: int) -> Path:
        out = root / str(batch)
        if not out.exists():
            options = [*OPTIONS, "--batch-size", str(batch), "--steps", str(STEPS)]
            assert main(["fit", str(FOX), "--out", str(out), "--offload", "none", *options]) == 0
        return out

    return run


def _one_more(run: Path, out: Path, preset: str) -> dict[str, Tensor]:
    """All rows after another batch, those that sleep brought up to date."""
    shutil.copytree(run, out)
    more = ["--resume", "--steps", str(STEPS + 1), "--offload", preset]
    assert main(["fit", str(FOX), "--out", str(out), *more]) == 0
    return _rows(out)


def _rows(out: Path) -> dict[str, Tensor]:
    model = Run.open(out).model(torch.device("cpu"))
    return {name: model.read(name).double() for name in NAMES}


@pytest.mark.parametrize(
    ("preset", "batch"), [("naive", 4), ("clm", 4), ("best", 4), ("best", 1), ("gs-scale", 1)]
)
@one_threaded
def test_a_batch_of_photographs_moves_rows_as_on_the_device(
    trained: Callable[[int], Path], tmp_path: Path, preset: str, batch: int
) -> None:
    run = trained(batch)
    before = _rows(run)
    theirs = _one_more(run, tmp_path / "none", "none")
    ours = _one_more(run, tmp_path / preset, preset)
    moved = 0
    for name in NAMES:
        a, b, rate = ours[name], theirs[name], getattr(LearningRates(), name)
        assert len(a) > 1000
        excess = (a - b).abs() / b.abs().clamp_min(rate)
        assert excess.max() <= 1e-5, f"{name}: {excess.max():.1e}"
        moved += int((b != before[name]).sum())
    assert moved > 10_000


@pytest.fixture
def along_fox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Scripted runs go along these cameras over these points; how many rows there are."""
    scene = Scene.load(load_capture(FOX, cache_dir=tmp_path), torch.device("cpu"))
    points = scene.frame.points_in(scene.capture.points)
    first = rows_from_points(points, scene.capture.colors, sh_degree=1, opacity=0.5, seed=0)
    rows = signed(first)
    views = [
        replace(
            view, K=torch.diag(torch.tensor([64 / view.width, 48 / view.height, 1.0])) @ view.K,
            width=64, height=48,
        )
        for view in scene.views
    ]  # fmt: skip
    monkeypatch.setattr(scripted_runs, "views", lambda: views)
    monkeypatch.setattr(scripted_runs, "rows", lambda: rows)
    script = Script(views, rows)
    monkeypatch.setattr(scripted_runs, "script", lambda: script)
    monkeypatch.setattr(scripted_runs, "EXTENT", 0.3)  # in a frame of size 1: no row leaves a view
    # Nearly every row moves in nearly every step: after 200 of them what torch's Adam and ours
    # round differently comes to 1.4e-5 of a step, with naive as with all others.
    monkeypatch.setattr(scripted_runs, "STEPS", 100)
    monkeypatch.setattr(scripted_runs, "drive", functools.partial(drive, n_views=len(views)))
    return len(rows["means"])


@pytest.mark.parametrize(
    ("strategy", "batch_size"),
    [
        ("adc", 1),
        pytest.param("adc", 4, marks=pytest.mark.long),
        pytest.param("mcmc", 1, marks=pytest.mark.long),
        pytest.param("mcmc", 4, marks=pytest.mark.long),
    ],
)
@one_threaded
def test_scripted_runs_do_what_torch_adam_does(
    strategy: str, batch_size: int, along_fox: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted_runs.draw_uniformly(monkeypatch)
    naive = scripted_runs.run("naive", strategy, batch_size, monkeypatch)
    theirs = scripted_runs.reference(strategy, batch_size, naive.orders)
    assert len({along_fox, *theirs.counts}) > 2, "densification must have happened"
    presets = [("clm", None), ("best", None), ("best", 0)]
    presets += [("gs-scale", None)] if batch_size == 1 else []
    for preset, residents in presets:
        limits = Limits(residents=residents)
        ours = scripted_runs.run(preset, strategy, batch_size, monkeypatch, limits=limits)
        assert ours.counts == theirs.counts
        for name in NAMES:
            a, b = ours.rows[name].double(), theirs.rows[name].double()
            excess = (a - b).abs() / b.abs().clamp_min(theirs.rates[name])
            assert excess.max() <= 1e-5, f"{preset}, {residents}, {name}: {excess.max():.2e}"
            if preset == "clm":
                assert torch.equal(ours.rows[name], naive.rows[name]), name
