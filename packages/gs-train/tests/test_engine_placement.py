# SPDX-License-Identifier: Apache-2.0
"""The loop over any placement: what the engine calls, in which order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from street import street_rows, street_views
from torch import Tensor

from gs_train.backends import tiered_engine
from gs_train.engine.engine import Engine
from gs_train.engine.lookahead import EarlyList
from gs_train.engine.placement import Taken, Tools
from gs_train.engine.settings import StepSettings
from gs_train.engine.stats import BatchStats
from gs_train.engine.trace import Trace
from gs_train.machine.lanes import Lanes
from gs_train.options.presets import PRESETS
from gs_train.published.mirror import MirrorPlacement
from gs_train.renderers.cpu import CpuRenderer
from gs_train.rows.attributes import NAMES
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.tiered import TieredGaussians

VIEWS = street_views(width=64, height=48)
TRUTH = torch.full((48, 64, 3), 99, dtype=torch.uint8)
SETTINGS = StepSettings(1, dict.fromkeys(NAMES, 1e-3), (0.9, 0.999), 1e-15, 0.2)


class Noted(MirrorPlacement):
    """Notes what it is asked, and takes batches of so many rows at most."""

    def __init__(
        self, model: Gaussians, tools: Tools, calls: list[str], name: str, most: int, ahead: int
    ) -> None:
        super().__init__(model, tools)
        self.lists_ahead = ahead
        self.expected: list[EarlyList | None] = []
        self._calls, self._name, self._most = calls, name, most

    def __getattribute__(self, name: str) -> Any:
        if name in ("open", "begin", "update", "close", "finish", "leave"):
            self._calls.append(f"{self._name} {name}")
        return super().__getattribute__(name)

    def fits(self, n_rows: int) -> bool:
        return n_rows <= self._most

    def expect(self, following: EarlyList | None) -> None:
        self._calls.append(f"{self._name} expect")
        self.expected.append(following)

    def take(self, k: int) -> Taken:
        self._calls.append(f"{self._name} take {k}")
        return super().take(k)

    def give(self, k: int, taken: Taken) -> None:
        assert all(taken.leaves[name].grad is not None for name in NAMES)
        self._calls.append(f"{self._name} give {k}")
        super().give(k, taken)


def _batch(name: str) -> list[str]:
    begins = [f"{name} open", f"{name} begin", f"{name} expect"]
    draws = [f"{name} {what} {k}" for k in range(2) for what in ("take", "give")]
    return [*begins, *draws, f"{name} update", f"{name} close"]


def _engine(calls: list[str], most: int, ahead: int) -> tuple[Engine, list[Noted]]:
    lanes = Lanes(torch.device("cpu"))
    tools = Tools(lanes, Trace(lanes), BatchStats())
    model = Gaussians(street_rows(1500, sh_degree=1), device="cpu", make_optimizer=torch.optim.Adam)
    placements = [
        Noted(model, tools, calls, "small", most, ahead),
        Noted(model, tools, calls, "large", 10**9, 0),
    ]
    return Engine(model, CpuRenderer(), placements, tools), placements


def _step(engine: Engine, batch: list[int], *following: list[int]) -> Tensor:
    upcoming = [[VIEWS[k] for k in one] for one in following]
    pairs = [(VIEWS[k], TRUTH) for k in batch]
    return engine.step(pairs, SETTINGS, lambda *_: None, upcoming=upcoming)


def test_a_batch_runs_in_the_first_placement_that_it_fits_into() -> None:
    calls: list[str] = []
    engine, placements = _engine(calls, 10**9, 0)
    _step(engine, [0, 3])
    engine.finish()
    assert calls == [*_batch("small"), "small finish"]
    calls.clear()
    placements[0]._most = 0
    _step(engine, [0, 3])
    # The placement of the batch before lets go of the rows first.
    assert calls == ["small leave", *_batch("large")]
    assert engine.placement is placements[1]
    calls.clear()
    engine.make_room()
    assert calls == ["large leave"]


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_placement_is_told_of_the_next_batch_as_far_as_it_wants_lists(ahead: int) -> None:
    engine, (placement, _) = _engine([], 10**9, ahead)
    batches = [[0, 3], [5, 8], [11, 14], [2, 9]]
    for k, batch in enumerate(batches):
        _step(engine, batch, *batches[k + 1 : k + 3])
    names = [None if early is None else early.names for early in placement.expected]
    known = [tuple(VIEWS[i].name for i in batch) for batch in batches[1:]]
    assert names == ([None] * 4 if not ahead else [*known, None])


def test_a_batch_that_ends_in_the_middle_ends_the_run() -> None:
    rows = street_rows(1500, sh_degree=1)
    model = TieredGaussians(rows, device="cpu", semantics="deferred", travels=True)
    engine = tiered_engine(PRESETS["best"], model, CpuRenderer())
    _step(engine, [0, 3])
    with pytest.raises(KeyError, match="seen"):
        engine.step([(VIEWS[0], TRUTH)], SETTINGS, _raises)
    for call in (engine.finish, engine.make_room, lambda: _step(engine, [0, 3])):
        with pytest.raises(RuntimeError, match="last checkpoint"):
            call()
    model.close()


def _raises(*_: object) -> None:
    raise KeyError("seen")
