# SPDX-License-Identifier: Apache-2.0
"""Lists that are found one and two batches early: where there are any, and that no bit tells."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from photographed import LIVELY, photo_config, photographed, renderer
from street import drive, street_rows, street_views
from torch import Tensor

from gs_train.backends import tiered_engine
from gs_train.engine import lookahead
from gs_train.engine.engine import Engine
from gs_train.engine.microbatches import Seen, look
from gs_train.engine.settings import StepSettings
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS
from gs_train.renderers.cpu import CpuRenderer
from gs_train.renderers.culling import mark
from gs_train.rows.attributes import NAMES
from gs_train.rows.tiered import TieredGaussians
from gs_train.runs.trainer import Trainer

VIEWS = street_views(width=64, height=48)
BATCHES = [VIEWS[k : k + 2] for k in (0, 5, 11, 3, 8, 14, 1)]
SETTINGS = StepSettings(1, dict.fromkeys(NAMES, 1e-3), (0.9, 0.999), 1e-15, 0.2)


def _engine(preset: str = "best") -> Engine:
    of = PRESETS[preset]
    rows = street_rows(1500, sh_degree=1)
    model = TieredGaussians(rows, device="cpu", semantics=of.semantics, travels=of.residents)
    return tiered_engine(of, model, CpuRenderer())


def _step(engine: Engine, k: int, settings: StepSettings, *, n_known: int) -> None:
    truth = torch.full((48, 64, 3), 99, dtype=torch.uint8)
    engine.step(
        [(view, truth) for view in BATCHES[k]], settings, lambda *_: None,
        upcoming=BATCHES[k + 1 : k + 1 + n_known],
    )  # fmt: skip


class _Looks:
    """Counts the early lists that are found."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n = 0
        monkeypatch.setattr(lookahead, "look", self._look)

    def _look(self, *args: Any, **options: Any) -> Seen:
        self.n += 1
        return look(*args, **options)

    def take(self) -> int:
        """How many since this was last asked."""
        n, self.n = self.n, 0
        return n


@pytest.mark.parametrize("n_known", [0, 1, 2])
@pytest.mark.parametrize(("preset", "most"), [("best", 2), ("clm", 1), ("gs-scale", 0)])
def test_how_many_lists_are_found(
    preset: str, most: int, n_known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, engine = _Looks(monkeypatch), _engine(preset)
    _step(engine, 0, SETTINGS, n_known=n_known)
    # Nothing was known of the first one, so it is not known either whether that would have held.
    assert looks.take() == min(n_known, most, 1)
    _step(engine, 1, SETTINGS, n_known=n_known)
    assert looks.take() == min(n_known, most)
    _step(engine, 2, SETTINGS, n_known=n_known)
    assert looks.take() == min(n_known, most, 1), "one list more a step"
    engine.finish()
    engine.model.close()


def test_while_every_step_edits_rows_only_the_next_batch_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, engine, found = _Looks(monkeypatch), _engine(), []
    for k in range(5):
        _step(engine, k, SETTINGS, n_known=2)
        found.append(looks.take())
        if k == 0:
            engine.model.overwrite(torch.tensor([3]), {"means": torch.zeros(1, 3)})
        elif k == 1:
            engine.model.in_place("means")[3] = 0.0
    # What is known after the third holds: from then on two lists, then one more in each step.
    assert found == [1, 1, 1, 2, 1]
    engine.finish()
    engine.model.close()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 0),
        ({"means": 0.5}, 0),
        ({"sh0": 9.0}, 0),
        ({"means": 1.01}, 1),
        ({"opacities": 1.01}, 1),
    ],
)
def test_a_step_that_moves_rows_further_than_was_thought_makes_a_list_forgotten(
    change: dict[str, float], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, engine = _Looks(monkeypatch), _engine()
    _step(engine, 0, SETTINGS, n_known=1)
    _step(engine, 1, SETTINGS, n_known=2)
    looks.take()
    rates = {name: rate * change.get(name, 1.0) for name, rate in SETTINGS.rates.items()}
    _step(engine, 2, dataclasses.replace(SETTINGS, rates=rates), n_known=1)
    assert looks.take() == expected
    engine.finish()
    engine.model.close()


def test_a_list_has_all_rows_that_are_seen_later_and_marks_tell_these() -> None:
    fast = dataclasses.replace(SETTINGS, rates=dict.fromkeys(NAMES, 2e-2))
    engine = _engine()
    for k in range(3):
        _step(engine, k, fast, n_known=2)
    (early, _) = engine._lookahead._lists
    params, drawer = engine.model.params, CpuRenderer()
    now = look(params, BATCHES[3], drawer)
    assert set(now.ids.tolist()) < set(early.seen.ids.tolist())
    listed = early.seen.cameras, early.seen.ids, early.seen.mask
    assert torch.equal(early.seen.ids[mark(params, *listed, drawer)], now.ids)
    engine.finish()
    engine.model.close()


@pytest.mark.parametrize("drawn_by", ["cpu", pytest.param("raster", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("preset", "batch_size", "limits"),
    [
        ("best", 3, UNLIMITED),
        ("best", 1, UNLIMITED),
        ("best", 3, Limits(residents=550)),
        ("best", 3, Limits(residents=2000, rows=280)),
        ("clm", 3, UNLIMITED),
    ],
)
def test_what_is_known_of_coming_batches_changes_no_bit(
    preset: str, batch_size: int, limits: Limits, drawn_by: str
) -> None:
    knowing, surprised = (_trained(preset, batch_size, limits, drawn_by, n_known=n) for n in (2, 0))
    assert knowing.keys() == surprised.keys()
    for name, value in surprised.items():
        assert torch.equal(knowing[name], value), name


def test_batches_of_both_kinds_were_among_those_of_the_test_before() -> None:
    """Some fit into the residents' slots and some do not; some have views that are cut."""
    taken = photographed("street")
    batches = [[taken.views[i] for i in batch] for batch in drive(12, 3, n_views=len(taken.views))]
    seen = [look(taken.rows, batch, renderer("cpu")) for batch in batches]
    fits = [len(of.ids) <= 550 for of in seen]
    assert any(fits)
    assert not all(fits)
    assert any(max(of.counts) > 280 for of in seen)


def _trained(
    preset: str, batch_size: int, limits: Limits, drawn_by: str, *, n_known: int
) -> dict[str, Tensor]:
    drawer = renderer(drawn_by)
    taken = photographed("street").on(drawer.device.type)
    config = photo_config(batch_size=batch_size, strategy="adc", resort_every=0, lr=LIVELY)
    trainer = Trainer(
        config,
        taken.rows,
        renderer=drawer,
        extent=taken.extent,
        preset=PRESETS[preset],
        limits=limits,
    )
    steps = drive(12, batch_size, n_views=len(taken.views))
    for k, batch in enumerate(steps):
        upcoming = [[taken.views[i] for i in of] for of in steps[k + 1 : k + 1 + n_known]]
        trainer.train_step([(taken.views[i], taken.photographs[i]) for i in batch], upcoming)
    tensors = {name: value.clone() for name, value in trainer.tensors().items()}
    trainer.model.close()  # type: ignore[attr-defined]
    return tensors
