# SPDX-License-Identifier: Apache-2.0
"""Two runs leave the same bits on the CPU and, with `raster`, on one GPU; so do runs that go on.

The bits are those of losses and of everything that a checkpoint holds: values, moments, what
sleeps since when, keys, statistics of densification, costs of views.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from one_thread import one_threaded
from photographed import LIVELY, Photographed, photo_config, photographed, renderer, train
from scripted import small_rings
from street import EXTENT, drive, street_rows, street_views
from torch import Tensor

import gs_train
from gs_train import StopTraining
from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.densify import AdcConfig, McmcConfig
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS
from gs_train.runs.trainer import StepResult, Trainer

STEPS, MIDDLE = 12, 7
RENDERERS = ["cpu", pytest.param("raster", marks=pytest.mark.gpu)]

KINDS = [
    *((preset, UNLIMITED, s, b) for preset in PRESETS for s in ("adc", "mcmc") for b in (1, 3)),
    ("none", Limits(rows=280), "adc", 3),
    ("clm", Limits(rows=280), "adc", 3),
    ("best", Limits(residents=0), "adc", 3),
    ("best", Limits(residents=550, rows=280), "adc", 3),
    ("best", Limits(residents=10**6), "mcmc", 3),
]
"""Presets, limits, strategies and batches: some views are cut, some batches find no slots."""

Left = tuple[list[float], dict[str, Tensor]]
"""The losses of a run, and what a checkpoint of it holds."""

over_kinds = pytest.mark.parametrize(("preset", "limits", "strategy", "batch_size"), KINDS)
on_renderers = pytest.mark.parametrize("drawn_by", RENDERERS)


@pytest.fixture(autouse=True)
def _small_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    small_rings(monkeypatch)


@on_renderers
@over_kinds
@one_threaded
def test_two_runs_leave_the_same_bits(
    drawn_by: str, preset: str, limits: Limits, strategy: str, batch_size: int
) -> None:
    """Other work on the device changes when each block of a kernel runs."""
    kind = drawn_by, preset, limits, strategy, batch_size
    first = _whole(*kind)
    assert len(first[1]["model/means"]) != len(photographed("street").rows["means"])
    _assert_same(_run(*kind, is_disturbed=True), first)


@on_renderers
@over_kinds
@one_threaded
def test_a_run_that_goes_on_leaves_the_bits_of_one_that_was_not_stopped(
    drawn_by: str, preset: str, limits: Limits, strategy: str, batch_size: int
) -> None:
    kind = drawn_by, preset, limits, strategy, batch_size
    _assert_same(_run(*kind, stopped_at=MIDDLE), _whole(*kind))


@pytest.mark.parametrize(
    ("drawn_by", "n_rows", "width"),
    [("cpu", 3000, 96), pytest.param("raster", 300_000, 1200, marks=pytest.mark.gpu)],
)
@pytest.mark.parametrize(("preset", "strategy"), [("none", "adc"), ("best", "mcmc")])
@one_threaded
def test_views_of_many_tiles_leave_the_same_bits(
    drawn_by: str, n_rows: int, width: int, preset: str, strategy: str
) -> None:
    """On a GPU more blocks than run at once."""
    kind = drawn_by, preset, UNLIMITED, strategy, 3
    how: dict[str, Any] = {"scene": _noisy(n_rows, width), "grow_grad2d": 1e-8}
    first = _run(*kind, **how)
    assert len(first[1]["model/means"]) != n_rows
    _assert_same(_run(*kind, **how, is_disturbed=True), first)


@on_renderers
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
@one_threaded
def test_no_step_takes_sums_in_any_order_or_reads_what_nobody_wrote(
    drawn_by: str, preset: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch refuses operations that it knows to be in no order, takes others in a fixed order, and
    fills memory that is new: no bit of a run changes."""
    # Sizes of intersections are matrix products of zeros and ones, exact in any order.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    kind = drawn_by, preset, UNLIMITED, strategy, 1 if PRESETS[preset].single_view else 3
    expected = _whole(*kind)
    torch.use_deterministic_algorithms(True)
    try:
        _assert_same(_run(*kind), expected)
    finally:
        torch.use_deterministic_algorithms(False)


@on_renderers
@pytest.mark.parametrize("offload", ["none", "best"])
@one_threaded
def test_a_run_that_is_stopped_and_resumed_writes_the_same_bytes(
    drawn_by: str, offload: str, tiny_capture: Path, tmp_path: Path
) -> None:
    refining = AdcConfig(refine_start=2, refine_every=4, reset_every=12, grow_grad2d=1e-5, cap=9000)
    options: dict[str, Any] = {"steps": STEPS, "batch_size": 2, "renderer": drawn_by, "seed": 3}
    options |= {"offload": offload, "sh_every": 4, "resort_every": 0.01, "adc": refining}

    def stop(report: gs_train.StepReport) -> None:
        if report.step == MIDDLE:
            raise StopTraining

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    gs_train.fit(data=tiny_capture, out=whole, **options)
    with pytest.raises(StopTraining):
        gs_train.fit(data=tiny_capture, out=stopped, on_step=stop, **options)
    gs_train.fit(data=tiny_capture, out=stopped, resume=True, **options)
    theirs, ours = (_saved(out) for out in (whole, stopped))
    _assert_same(([], ours), ([], theirs))
    (cloud,) = whole.glob("point_cloud/*/point_cloud.ply")
    assert (stopped / cloud.relative_to(whole)).read_bytes() == cloud.read_bytes()


def _saved(out: Path) -> dict[str, Tensor]:
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    checkpoint = load_checkpoint(newest)
    assert checkpoint.step == STEPS
    return checkpoint.tensors


@functools.cache
def _whole(*kind: Any) -> Left:
    """A run that was not stopped, once for each kind."""
    return _run(*kind)


def _run(
    drawn_by: str,
    preset: str,
    limits: Limits,
    strategy: str,
    batch_size: int,
    *,
    stopped_at: int | None = None,
    is_disturbed: bool = False,
    scene: Photographed | None = None,
    grow_grad2d: float = 0.002,
) -> Left:
    b, scene = batch_size, scene or photographed("street")
    most = len(scene.rows["means"]) + 1000
    refining = {"refine_start": 2 * b, "refine_every": 4 * b}
    config = photo_config(
        batch_size=b,
        strategy=strategy,
        resort_every=0.02,
        mem_limit=0.05,
        adc=AdcConfig(grow_grad2d=grow_grad2d, reset_every=9 * b, cap=most, **refining),
        mcmc=McmcConfig(cap_max=most, noise_lr=2e2, min_opacity=0.05, **refining),
        lr=LIVELY,
    )
    steps = drive(STEPS, b, n_views=len(scene.views))
    how: dict[str, Any] = {
        "renderer": renderer(drawn_by),
        "extent": scene.extent,
        "preset": PRESETS[preset],
        "limits": limits,
    }
    trainer = Trainer(config, scene.rows, **how)
    if is_disturbed:
        _disturb(trainer)
    losses: list[Tensor] = []
    if stopped_at is not None:
        losses += train(trainer, steps[:stopped_at], scene=scene)
        saved = _left(trainer)
        trainer = Trainer.restore(config, saved, step=stopped_at, **how)
    losses += train(trainer, steps, scene=scene)
    return torch.stack(losses).tolist(), _left(trainer)


def _noisy(n_rows: int, width: int) -> Photographed:
    """A street whose photographs show noise."""
    views = street_views(24, width=width, height=2 * width // 3, focal=0.4)
    draw = torch.Generator().manual_seed(1)
    photographs = [
        torch.randint(0, 256, (view.height, view.width, 3), dtype=torch.uint8, generator=draw)
        for view in views
    ]
    return Photographed(street_rows(n_rows, sh_degree=1), views, photographs, EXTENT)


def _left(trainer: Trainer) -> dict[str, Tensor]:
    """What a checkpoint would hold of a run, which ends here."""
    tensors = {name: value.cpu().clone() for name, value in trainer.tensors().items()}
    if trainer.preset.placement == "split":
        trainer.model.close()  # type: ignore[attr-defined]
    return tensors


def _assert_same(ours: Left, theirs: Left) -> None:
    assert ours[0] == theirs[0], "losses"
    assert ours[1].keys() == theirs[1].keys()
    for name, value in theirs[1].items():
        assert ours[1][name].dtype == value.dtype
        assert torch.equal(ours[1][name], value), name


def _disturb(trainer: Trainer) -> None:
    """Give a GPU other work beside every step."""
    device = trainer.renderer.device
    if device.type != "cuda":
        return
    step_once, numbers = trainer.train_step, torch.zeros(1 << 22, device=device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    numbers.record_stream(stream)  # whose memory is not another's before the work is done

    def disturbed(*args: Any, **options: Any) -> StepResult:
        with torch.cuda.stream(stream):
            for _ in range(200):
                numbers.add_(1.0)
        return step_once(*args, **options)

    trainer.train_step = disturbed  # type: ignore[method-assign]
