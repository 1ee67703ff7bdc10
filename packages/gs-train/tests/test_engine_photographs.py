# SPDX-License-Identifier: Apache-2.0
"""Presets with a real renderer: one batch from a common state, free runs, and rows that move."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from photographed import (
    first_rows,
    gradients_of,
    photo_config,
    psnr,
    renderer,
    seen_ids,
    train,
    views,
)
from plain_adam import PlainLoop
from scipy.spatial import cKDTree
from scripted import small_rings
from street import EXTENT, drive
from torch import Tensor
from watchdog import within

import gs_cull
from gs_train.config import FitConfig
from gs_train.densify import AdcConfig, McmcConfig
from gs_train.engine import preparing
from gs_train.engine.limits import UNLIMITED, Limits
from gs_train.engine.presets import PRESETS
from gs_train.renderers import Splats
from gs_train.rows import NAMES
from gs_train.schedule import LearningRates
from gs_train.trainer import Trainer

LIVELY = LearningRates(means=5e-4, scales=2e-2, quats=1e-2, sh0=1e-2, shN=1e-3)
POINTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 17, 20, 24, 28, 33, 38, 44, 50, 57, 64)
RENDERERS = ["cpu", pytest.param("gsplat", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def _small_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    small_rings(monkeypatch)


def _trainer(
    config: FitConfig, preset: str, drawn_by: str = "cpu", *, limits: Limits = UNLIMITED
) -> Trainer:
    return Trainer(
        config,
        first_rows(),
        renderer=renderer(drawn_by),
        extent=EXTENT,
        preset=PRESETS[preset],
        limits=limits,
    )


def _rows_of(trainer: Trainer) -> dict[str, Tensor]:
    trainer.backend.finish()
    rows = {name: trainer.model.read(name).cpu().clone() for name in NAMES}
    if trainer.preset.placement == "split":
        trainer.model.close()  # type: ignore[attr-defined]
    return rows


# -- one batch


@pytest.mark.parametrize("batch_size", [1, 4])
@within(300)
def test_one_batch_from_a_common_state_moves_rows_as_torch_adam_does(batch_size: int) -> None:
    """Gradients by autograd over whole views, also where the preset draws them in crops."""
    config = photo_config(batch_size=batch_size, resort_every=0, mem_limit=0.03, lr=LIVELY)
    steps = drive(POINTS[-1] + 1, batch_size)
    none = _trainer(config, "none")
    gradients = gradients_of(batch_size, config.ssim_lambda)
    n_cut = 0
    for point in POINTS:
        train(none, steps[:point])
        saved = {name: value.clone() for name, value in none.tensors().items()}
        plain = PlainLoop.restore(config, saved, step=point, extent=EXTENT)
        plain.train_step([views()[i] for i in steps[point]], gradients)
        for preset, residents in [*((name, None) for name in PRESETS), ("best", 0)]:
            if PRESETS[preset].single_view and batch_size > 1:
                continue
            trainer = Trainer.restore(
                config,
                saved,
                step=point,
                renderer=renderer(),
                extent=EXTENT,
                preset=PRESETS[preset],
                limits=Limits(rows=150, residents=residents),
            )
            train(trainer, steps[: point + 1])
            if PRESETS[preset].placement == "split":
                n_cut += trainer.backend.stats.microbatches > batch_size  # type: ignore[attr-defined]
            ours = _rows_of(trainer)
            for name in NAMES:
                a, b = ours[name].double(), plain.model.read(name).double()
                excess = (a - b).abs() / b.abs().clamp_min(plain.rates[name])
                assert excess.max() <= 1e-5, f"{preset}, step {point}, {name}: {excess.max():.1e}"
    assert n_cut > 0


@pytest.mark.gpu
@pytest.mark.parametrize("batch_size", [1, 4])
@within(300)
def test_on_a_gpu_it_does_so_up_to_the_spread_of_none(batch_size: int) -> None:
    """There sums have no order, so `none` does not repeat itself either."""
    config = photo_config(batch_size=batch_size, resort_every=0, mem_limit=1.0, lr=LIVELY)
    steps = drive(POINTS[-1] + 1, batch_size)
    none = _trainer(config, "none", "gsplat")
    for point in POINTS:
        train(none, steps[:point])
        saved = {name: value.clone() for name, value in none.tensors().items()}

        def after(preset: str, shift: int = 0, limits: Limits = UNLIMITED) -> dict[str, Tensor]:
            trainer = Trainer.restore(
                config,
                saved,  # noqa: B023 (called before the next point)
                step=point,  # noqa: B023
                renderer=renderer("gsplat"),
                extent=EXTENT,
                preset=PRESETS[preset],
                limits=limits,
            )
            batch = steps[point]  # noqa: B023
            train(trainer, [*steps[:point], batch[shift:] + batch[:shift]])  # noqa: B023
            return _rows_of(trainer)

        first = after("none")
        spread = dict.fromkeys(NAMES, 0.0)
        for shift in range(3):
            apart = _relative(after("none", shift % batch_size), first, config)
            spread = {name: max(spread[name], apart[name]) for name in NAMES}
        presets = [("naive", None), ("clm", None), ("best", None), ("best", 0)]
        if batch_size == 1:
            presets.append(("gs-scale", None))
        for preset, residents in presets:
            apart = _relative(after(preset, limits=Limits(residents=residents)), first, config)
            for name in NAMES:
                bound = max(1e-5, 3 * spread[name])
                assert apart[name] <= bound, f"{preset}, step {point}, {name}: {apart[name]:.1e}"


def _relative(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], config: FitConfig
) -> dict[str, float]:
    """99.9 % quantile by attribute, of a value or of the most that a step moves it."""
    apart = {}
    for name in NAMES:
        a, b = ours[name].double(), theirs[name].double()
        excess = (a - b).abs() / b.abs().clamp_min(getattr(config.lr, name))
        apart[name] = float(excess.flatten().quantile(0.999))
    return apart


# -- free runs


_FREE: dict[str, tuple[tuple[str, int | None], ...]] = {
    "cpu": (("naive", None), ("clm", None), ("best", None), ("best", 0)),
    "gsplat": (("naive", None), ("clm", None), ("best", None), ("best", 0)),
}
"""Presets, and how many residents."""

_SHUFFLED: dict[str, Sequence[int]] = {"cpu": (1, 2), "gsplat": range(12)}
"""Orders of batches. On a GPU the very same differs as well, and not every time alike: of 24 runs
of `none` with MCMC, whose draws go another way by rounding, 17 ended at 23.12 to 23.16 dB, 7 at
23.03 to 23.10."""

_ATTEMPTS = {"cpu": 1, "gsplat": 3}
"""Runs of a preset of which one has to stay near. Of 72 orders of `none` drawn by the CPU, which
repeats itself, 68 stay within 0.03 of the first (``sh0``) and 4 are 0.11 away, all alike: a handful
of Gaussians go one way or another, and on a GPU not the order alone decides."""


def _free_config(strategy: str) -> FitConfig:
    b = 8
    return photo_config(
        batch_size=b,
        strategy=strategy,
        resort_every=20 * b,
        adc=AdcConfig(
            grow_grad2d=0.002,
            refine_start=10 * b,
            refine_every=20 * b,
            reset_every=50 * b,
            cap=5000,
        ),
        mcmc=McmcConfig(cap_max=4600, noise_lr=2e2, refine_start=10 * b, refine_every=20 * b),
        lr=LIVELY,
    )


def _free_run(
    preset: str,
    strategy: str,
    shuffled: int = 0,
    *,
    drawn_by: str,
    limits: Limits = UNLIMITED,
) -> dict[str, Tensor]:
    steps = drive(100, 8)
    if shuffled:
        draw = torch.Generator().manual_seed(shuffled)
        steps = [[batch[i] for i in torch.randperm(8, generator=draw)] for batch in steps]
    trainer = _trainer(_free_config(strategy), preset, drawn_by, limits=limits)
    train(trainer, steps)
    return _rows_of(trainer)


def _differences(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, float]:
    """99.9 % quantile by attribute, each row against the most similar one."""

    def features(rows: dict[str, Tensor]) -> Tensor:
        parts = 3.0 * rows["means"], rows["scales"], rows["opacities"][:, None], rows["sh0"][:, 0]
        return torch.cat(parts, 1).double()

    nearest = torch.from_numpy(cKDTree(features(theirs)).query(features(ours))[1])
    return {
        name: float((ours[name] - theirs[name][nearest]).abs().flatten().quantile(0.999))
        for name in NAMES
    }


@pytest.mark.parametrize("drawn_by", RENDERERS)
@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
@within(400)
def test_free_runs_differ_no_more_than_the_order_of_a_batch_makes_them(
    strategy: str, drawn_by: str
) -> None:
    """Rounding grows in 100 steps, most where densification draws by it: hence the spread."""
    none = _free_run("none", strategy, drawn_by=drawn_by)
    orders = _SHUFFLED[drawn_by] if strategy == "adc" or drawn_by == "gsplat" else (1,)
    others = [_free_run("none", strategy, order, drawn_by=drawn_by) for order in orders]
    apart = [_differences(other, none) for other in others]
    spread = {name: max(run[name] for run in apart) for name in NAMES}
    reached = [psnr(run) for run in ((none, *others) if drawn_by == "gsplat" else (none,))]
    assert min(spread.values()) > 0
    assert len(none["means"]) > len(first_rows()["means"]), "densification must have happened"
    assert psnr(none) > psnr(first_rows()) + 3
    for preset, residents in _FREE[drawn_by] if strategy == "adc" else (("best", None),):
        limits = Limits(residents=residents)
        for _ in range(_ATTEMPTS[drawn_by]):
            ours = _free_run(preset, strategy, drawn_by=drawn_by, limits=limits)
            assert abs(len(ours["means"]) - len(none["means"])) <= 1e-3 * len(none["means"])
            found = _differences(ours, none)
            far = {name: found[name] for name in NAMES if found[name] > 3 * spread[name]}
            if not min(reached) - 0.05 <= psnr(ours) <= max(reached) + 0.05:
                far["psnr"] = psnr(ours)
            if not far:
                break
        assert not far, f"{preset}, {residents} residents, against {spread} and {reached} dB"


# -- rows that move into view


def _missed_and_surplus(preset: str) -> tuple[int, int]:
    """Rows that a view saw when it was drawn, but that were not drawn; and the reverse."""
    config = photo_config(
        batch_size=2, resort_every=0, lr=dataclasses.replace(LIVELY, means=2e-3, opacities=0.1)
    )
    trainer = _trainer(config, preset)
    observe = trainer.densifier.observe
    missed = surplus = 0

    def counted(ids: Tensor, splats: Splats, **options: Any) -> None:
        nonlocal missed, surplus
        sees = torch.zeros(trainer.model.n_rows, dtype=torch.bool)
        drawn = sees.clone()
        sees[seen_ids(trainer.model.params, splats.view)] = True
        drawn[ids.long()] = True
        missed += int((sees & ~drawn).sum())
        surplus += int((drawn & ~sees).sum())
        observe(ids, splats, **options)

    trainer.densifier.observe = counted  # type: ignore[method-assign]
    train(trainer, drive(30, 2))
    _rows_of(trainer)
    return missed, surplus


@pytest.mark.parametrize("preset", ["clm", "best"])
@within(120)
def test_batches_found_early_miss_no_row_that_moves_into_view(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missed, surplus = _missed_and_surplus(preset)
    assert missed == 0
    assert surplus > 0, "batches must have been found early"
    monkeypatch.setattr(preparing, "largest_move", lambda *_: gs_cull.Inflate())
    missed, _ = _missed_and_surplus(preset)
    assert missed > 0, "rows must have moved into view"
