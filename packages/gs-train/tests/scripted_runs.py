# SPDX-License-Identifier: Apache-2.0
"""Runs of a trainer along the street with scripted gradients, and the same as a plain loop."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_adam import PlainLoop
from scripted import Script, ScriptedRenderer, numbers, product, signed, small_rings
from street import EXTENT, N_ROWS, drive, street_rows, street_views
from torch import Tensor

from gs_train.densify import AdcConfig, McmcConfig, mcmc
from gs_train.options.config import FitConfig
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS
from gs_train.options.schedule import LearningRates
from gs_train.renderers import Splats, View
from gs_train.rows.attributes import NAMES
from gs_train.rows.gaussians import Gaussians
from gs_train.runs.trainer import Trainer

STEPS = 200
BLANK = torch.full((48, 64, 3), 128, dtype=torch.uint8)


def scripted_config(strategy: str, batch_size: int) -> FitConfig:
    """All happens several times in a run, and no opacity gets near what culling drops."""
    b = batch_size
    return FitConfig(
        data=Path("-"),
        out=Path("-"),
        steps=2 * STEPS,
        renderer="cpu",
        batch_size=b,
        strategy=strategy,  # type: ignore[arg-type]
        seed=5,
        resort_every=0.04,
        mem_limit=0.015,
        adc=AdcConfig(
            prune_opa=0.03,
            grow_grad2d=2.9 * 32 * b,
            refine_start=20 * b,
            refine_every=30 * b,
            reset_every=70 * b,
            cap=N_ROWS + 700,
        ),
        mcmc=McmcConfig(
            cap_max=N_ROWS + 1500,
            noise_lr=1e3,
            refine_start=15 * b,
            refine_every=25 * b,
            min_opacity=0.022,
        ),
        # Of MCMC's penalty on opacity few rows shall die: what is relocated is awake.
        lr=LearningRates(opacities=1e-2 if strategy == "adc" else 2e-3),
    )


@functools.cache
def views() -> list[View]:
    return street_views(width=64, height=48)


@functools.cache
def rows() -> dict[str, Tensor]:
    return signed(street_rows())


@functools.cache
def script() -> Script:
    return Script(views(), rows())


Products = dict[tuple[int, str], Tensor]


def scripted_gradients(
    view: View, step: int, model: Gaussians, *, products: Products
) -> tuple[dict[str, Tensor], Splats]:
    number = numbers(model.params["quats"])
    gradients = script().gradients(view, number, step)
    nothing = torch.zeros(len(number))
    splats = Splats(
        means2d=torch.zeros_like(gradients["means2d"]),
        conics=nothing,
        depths=nothing,
        radii=script().shown(view, number).int()[:, None].expand(-1, 2),
        opacities=nothing,
        colors=nothing,
        view=view,
    )
    splats.means2d.grad = gradients["means2d"]
    key = step, view.name
    products[key] = products.get(key, 0.0) + product(gradients, model.params)
    return gradients, splats


@dataclass
class Outcome:
    """What a run left.

    Attributes:
        rows: all attributes, in the rows' order.
        counts: rows after each step.
        orders: permutations by which rows were re-sorted.
        products: as `ScriptedRenderer.products`.
        rates: of the last step.
    """

    rows: dict[str, Tensor]
    counts: list[int]
    orders: list[Tensor]
    products: Products
    rates: dict[str, float] = field(default_factory=dict)


def reference(strategy: str, batch_size: int, orders: Sequence[Tensor]) -> Outcome:
    config = scripted_config(strategy, batch_size)
    loop = PlainLoop(config, rows(), extent=EXTENT, orders=orders)
    counts: list[int] = []
    products: Products = {}
    gradients = functools.partial(scripted_gradients, products=products)
    for batch in drive(STEPS, batch_size):
        loop.train_step([views()[i] for i in batch], gradients)
        counts.append(loop.model.n_rows)
    return Outcome(
        {n: loop.model.read(n) for n in NAMES}, counts, list(orders), products, loop.rates
    )


@dataclass
class Seen:
    """What a run went through.

    Attributes:
        sleeps: steps since rows were last updated, when they were needed again.
        drawn: as `ScriptedRenderer.drawn`.
    """

    sleeps: list[Tensor] = field(default_factory=list)
    drawn: list[Any] = field(default_factory=list)


def run(
    preset: str,
    strategy: str,
    batch_size: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    limits: Limits = UNLIMITED,
    seen: Seen | None = None,
    hints: Sequence[Sequence[int]] | None = None,
) -> Outcome:
    """A trainer's scripted steps."""
    config = scripted_config(strategy, batch_size)
    renderer = ScriptedRenderer(script())
    small_rings(monkeypatch)
    trainer = Trainer(
        config,
        rows(),
        renderer=renderer,
        extent=EXTENT,
        preset=PRESETS[preset],
        limits=limits,
    )
    if seen is not None:
        watch(trainer, seen)
    steps = drive(STEPS, batch_size)
    hints = steps[1:] if hints is None else hints
    counts: list[int] = []
    orders: list[Tensor] = []
    permute = trainer.model.permute

    def noted(order: Tensor) -> None:
        orders.append(order)
        permute(order)

    trainer.model.permute = noted  # type: ignore[method-assign]
    for step, batch in enumerate(steps):
        renderer.step = step
        upcoming = [[views()[i] for i in hint] for hint in hints[step : step + 2]]
        trainer.train_step([(views()[i], BLANK) for i in batch], upcoming)
        counts.append(trainer.model.n_rows)
    trainer.backend.finish()
    if seen is not None:
        seen.drawn = renderer.drawn
    outcome = Outcome(
        {n: trainer.model.read(n).clone() for n in NAMES}, counts, orders, renderer.products
    )
    if PRESETS[preset].placement == "split":
        trainer.model.close()  # type: ignore[attr-defined]
    return outcome


def watch(trainer: Trainer, seen: Seen) -> None:
    """Note how long rows had slept, in every third step."""
    if PRESETS[trainer.preset.name].semantics != "deferred":
        return
    step_once, observe = trainer.train_step, trainer.densifier.observe
    before: list[Tensor] = []

    def train_step(*args: Any, **options: Any) -> Any:
        before.clear()
        if trainer.step % 3 == 2:
            last = trainer.model.appearance.tensors()["appearance.last_step"]  # type: ignore[attr-defined]
            before.append(trainer.step - last)
        return step_once(*args, **options)

    def noted(ids: Tensor, splats: Splats, *, batch_size: int) -> None:
        if before:
            seen.sleeps.append(before[0][ids.long()])
        observe(ids, splats, batch_size=batch_size)

    trainer.train_step = train_step  # type: ignore[method-assign]
    trainer.densifier.observe = noted  # type: ignore[method-assign]


def draw_uniformly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows to copy are drawn alike: by opacity, a draw may hang on the last bit of all others'."""
    real = mcmc.draw

    def draw(weights: Tensor, n: int, **key: Any) -> Tensor:
        return real(torch.full_like(weights, 0.5), n, **key)

    monkeypatch.setattr(mcmc, "draw", draw)
