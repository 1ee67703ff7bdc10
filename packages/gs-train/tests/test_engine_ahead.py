# SPDX-License-Identifier: Apache-2.0
"""Batches that are culled two steps before they run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from street import street_rows, street_views

from gs_train.engine import preparing
from gs_train.engine.ahead import unpack
from gs_train.engine.backend import StepSettings
from gs_train.engine.microbatches import Seen, look
from gs_train.engine.model import OffloadedGaussians
from gs_train.engine.pipeline import Engine
from gs_train.engine.presets import PRESETS
from gs_train.renderers.cpu import CpuRenderer
from gs_train.rows import NAMES

VIEWS = street_views(width=64, height=48)
BATCHES = [VIEWS[k : k + 2] for k in (0, 5, 11, 3, 8, 14, 1)]
SETTINGS = StepSettings(1, dict.fromkeys(NAMES, 1e-3), (0.9, 0.999), 1e-15, 0.2)


def _engine(preset: str = "best") -> Engine:
    of = PRESETS[preset]
    rows = street_rows(1500, sh_degree=1)
    model = OffloadedGaussians(rows, device="cpu", semantics=of.semantics, travels=of.residents)
    return Engine(model, CpuRenderer(), of)


def _step(engine: Engine, k: int, settings: StepSettings, *, n_known: int) -> None:
    truth = torch.full((48, 64, 3), 99, dtype=torch.uint8)
    engine.step(
        [(view, truth) for view in BATCHES[k]], settings, lambda *_: None,
        upcoming=BATCHES[k + 1 : k + 1 + n_known],
    )  # fmt: skip


def _known(engine: Engine) -> int:
    """Batches that a checkpoint would go on with."""
    return sum(name in ("ids", "further.ids") for name in engine.ahead())


@pytest.mark.parametrize("n_known", [0, 1, 2])
@pytest.mark.parametrize(("preset", "most"), [("best", 2), ("clm", 1)])
def test_how_many_batches_are_looked_at(preset: str, most: int, n_known: int) -> None:
    engine = _engine(preset)
    _step(engine, 0, SETTINGS, n_known=n_known)
    # Nothing was known of the first one, so it is not known either whether that would have held.
    assert _known(engine) == min(n_known, 1)
    _step(engine, 1, SETTINGS, n_known=n_known)
    assert _known(engine) == min(n_known, most)
    engine.finish()
    engine.model.close()


def test_while_every_step_edits_rows_only_the_next_batch_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_looks = 0

    def count(*args: Any, **options: Any) -> Seen:
        nonlocal n_looks
        n_looks += 1
        return look(*args, **options)

    monkeypatch.setattr(preparing, "look", count)
    engine, found = _engine(), []
    for k in range(5):
        n_looks = 0
        _step(engine, k, SETTINGS, n_known=2)
        found.append(n_looks)
        if k < 2:
            engine.model.overwrite(torch.tensor([3]), {"means": torch.zeros(1, 3)})
    # What is known after the third holds: from then on one batch is looked at in each step.
    assert found == [2, 2, 2, 2, 1]
    engine.finish()
    engine.model.close()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 1),
        ({"means": 0.5}, 1),
        ({"sh0": 9.0}, 1),
        ({"means": 1.01}, 0),
        ({"opacities": 1.01}, 0),
    ],
)
def test_a_step_that_moves_rows_further_than_was_thought_makes_it_forgotten(
    change: dict[str, float], expected: int
) -> None:
    engine = _engine()
    _step(engine, 0, SETTINGS, n_known=1)
    _step(engine, 1, SETTINGS, n_known=2)
    rates = {name: rate * change.get(name, 1.0) for name, rate in SETTINGS.rates.items()}
    _step(engine, 2, dataclasses.replace(SETTINGS, rates=rates), n_known=0)
    # Nothing more was said of the batch after it: what is known of that is from before.
    assert _known(engine) == expected
    engine.finish()
    engine.model.close()


def test_a_batch_that_is_known_early_has_all_rows_that_are_seen_later() -> None:
    fast = dataclasses.replace(SETTINGS, rates=dict.fromkeys(NAMES, 2e-2))
    ahead, after = _engine(), _engine()
    for k in range(3):
        _step(ahead, k, fast, n_known=2)
        _step(after, k, fast, n_known=0)
    early, now = (engine._preparing.batch(BATCHES[3], fast) for engine in (ahead, after))
    kept, seen = set(early.seen.ids.tolist()), set(now.seen.ids.tolist())
    assert seen < kept
    for engine in (ahead, after):
        engine.finish()
        engine.model.close()


def test_what_is_known_of_other_views_or_of_nobody_knows_which_is_not_taken() -> None:
    engine = _engine()
    _step(engine, 0, SETTINGS, n_known=1)
    packed = engine.ahead()
    named = {name: tensor for name, tensor in packed.items() if name != "views"}
    for tensors, views, is_taken in (
        (packed, BATCHES[1], True),
        (packed, BATCHES[1][::-1], False),
        (packed, BATCHES[2], False),
        (named, BATCHES[1], False),
    ):
        assert (unpack(tensors, views, torch.device("cpu")) is not None) == is_taken
    engine.finish()
    engine.model.close()
