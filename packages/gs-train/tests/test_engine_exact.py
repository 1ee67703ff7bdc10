# SPDX-License-Identifier: Apache-2.0
"""Offloading changes where numbers live, not what they are: every preset against a plain loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from one_thread import one_threaded
from scripted import numbers
from scripted_runs import Outcome, Seen, draw_uniformly, reference, run, views
from street import NOTHING
from torch import Tensor

import gs_order
from gs_train.options.limits import Limits
from gs_train.options.presets import PRESETS
from gs_train.rows.attributes import NAMES

KINDS = ("load", "retain", "store", "carry", "returning", "final")
RUNS = (
    ("clm", Limits()),
    ("gs-scale", Limits()),
    ("best", Limits(residents=0)),
    ("best", Limits(residents=1000)),
)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[gs_order.Plan]:
    """The plans that the test makes."""
    made: list[gs_order.Plan] = []
    real = gs_order.plan

    def plan(*args: Any, **options: Any) -> gs_order.Plan:
        made.append(real(*args, **options))
        return made[-1]

    monkeypatch.setattr(gs_order, "plan", plan)
    return made


def assert_close(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], rates: dict[str, float]
) -> None:
    for name in NAMES:
        a, b = ours[name].double(), theirs[name].double()
        assert a.shape == b.shape, name
        excess = (a - b).abs() / b.abs().clamp_min(rates[name])
        assert excess.max() <= 1e-5, f"{name}: {excess.max():.2e} at {int(excess.argmax())}"


@pytest.mark.parametrize(
    ("strategy", "batch_size"),
    [
        ("adc", 1),
        ("mcmc", 1),
        pytest.param("adc", 4, marks=pytest.mark.long),
        pytest.param("mcmc", 4, marks=pytest.mark.long),
    ],
)
@one_threaded
def test_every_preset_does_what_torch_adam_does(
    strategy: str,
    batch_size: int,
    monkeypatch: pytest.MonkeyPatch,
    plans: list[gs_order.Plan],
) -> None:
    draw_uniformly(monkeypatch)
    naive = run("naive", strategy, batch_size, monkeypatch)
    theirs = reference(strategy, batch_size, naive.orders)
    assert len(set(theirs.counts)) > 2, "densification must have happened"
    assert len(naive.orders) > 2
    _check_same(naive, theirs)
    for preset, limits in RUNS:
        if batch_size > 1 and PRESETS[preset].single_view:
            continue
        seen = Seen()
        plans.clear()
        cut = 440 if preset in ("clm", "best") and batch_size > 1 else None
        under = replace(limits, rows=cut)
        ours = run(preset, strategy, batch_size, monkeypatch, limits=under, seen=seen)
        _check_same(ours, theirs)
        _check_what_happened(
            preset, strategy, batch_size, seen, is_cut=preset == "gs-scale" or bool(cut)
        )
        lists = {kind for kind in KINDS for plan in plans if plan.counts[kind].max()}
        assert lists == _lists_by_design(preset, limits, batch_size), (preset, limits)
        for name in NAMES if preset == "clm" else ():
            assert torch.equal(ours.rows[name], naive.rows[name]), name


def _lists_by_design(preset: str, limits: Limits, batch_size: int) -> set[str]:
    """Those lists of a preset's plans that must have rows, all others being empty."""
    if batch_size == 1 and limits.residents:
        return set()  # every batch fits, none is planned
    lists = {"load", "store", "final"}
    if batch_size > 1 or preset == "gs-scale":  # microbatches: views, or crops of one
        lists |= {"retain", "carry"}
    if batch_size > 1 and preset == "clm":
        lists |= {"returning"}
    return lists


def _check_same(ours: Outcome, theirs: Outcome) -> None:
    assert ours.counts == theirs.counts
    assert len(ours.orders) == len(theirs.orders)
    for one, other in zip(ours.orders, theirs.orders):
        assert torch.equal(one, other)
    assert torch.equal(numbers(ours.rows["quats"]), numbers(theirs.rows["quats"]))
    assert_close(ours.rows, theirs.rows, theirs.rates)
    # The view of nothing, and views in which nothing shows, need not be drawn.
    expected = {key: value for key, value in theirs.products.items() if value[1] > 0}
    assert expected.keys() <= ours.products.keys()
    for key, (value, size) in expected.items():
        # A single row from before its last update makes ten times the difference.
        assert (ours.products[key][0] - value).abs() <= 1e-6 * size, f"stale rows at {key}"


def _check_what_happened(
    preset: str, strategy: str, batch_size: int, seen: Seen, *, is_cut: bool
) -> None:
    """Without these the test would pass by doing nothing."""
    was_cut = any(rect.width < 64 or rect.height < 48 for _, rect, _ in seen.drawn)
    assert was_cut == is_cut, preset
    assert views()[NOTHING].name not in {name for name, _, _ in seen.drawn}
    if PRESETS[preset].semantics == "deferred":
        sleeps = torch.cat(seen.sleeps)
        assert sleeps.median() >= 10
        assert sleeps.max() > 60
