# SPDX-License-Identifier: Apache-2.0
"""How many rows a batch moves, in which order its views come, and what runs before what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from scripted import ScriptedRenderer
from scripted_runs import BLANK, rows, script, views

import gs_order
from gs_train.backends import tiered_engine
from gs_train.engine.engine import Engine
from gs_train.engine.microbatches import Seen, look
from gs_train.engine.settings import StepSettings
from gs_train.options.limits import Limits
from gs_train.options.presets import PRESETS, Preset
from gs_train.rows.attributes import NAMES
from gs_train.rows.tiered import TieredGaussians

SETTINGS = StepSettings(3, dict.fromkeys(NAMES, 1e-4), (0.9, 0.999), 1e-15, 0.2)
# Neighbours on one side of the street overlap; each batch sees some of what the next one does.
BATCHES = [[first + 2 * k for k in (2, 0, 3, 1)] for first in (0, 4, 8, 10, 4, 0)]


def _engine(
    preset: Preset, limits: Limits | None = None, renderer: ScriptedRenderer | None = None
) -> Engine:
    model = TieredGaussians(
        rows(), device="cpu", semantics=preset.semantics, travels=preset.residents
    )
    renderer = renderer or ScriptedRenderer(script())
    return tiered_engine(preset, model, renderer, limits=limits or Limits())


def _step(engine: Engine, batch: Sequence[int], *following: Sequence[int]) -> None:
    photographs = [(views()[i], BLANK) for i in batch]
    upcoming = [[views()[i] for i in one] for one in following]
    engine.step(photographs, SETTINGS, lambda *_: None, upcoming=upcoming)


def _close(engine: Engine) -> None:
    engine.finish()
    engine.model.close()


def _seen(batch: Sequence[int]) -> Seen:
    return look(rows(), [views()[i] for i in batch], ScriptedRenderer(script()))


# ---------------------------------------------------------------------- order


def test_clm_goes_through_a_batch_in_the_order_in_which_fewer_rows_come() -> None:
    batch = [20, 6, 14, 10, 22, 8, 16, 12]
    sets = [set(_seen([i]).ids.tolist()) for i in batch]
    shortest = gs_order.order(_seen(batch).mask, n_views=len(batch))
    loaded = {}
    for order, expected in (("tsp", shortest.tolist()), ("given", [*range(len(batch))])):
        renderer = ScriptedRenderer(script())
        engine = _engine(replace(PRESETS["clm"], order=order), renderer=renderer)
        _step(engine, batch)
        drawn = [name for name, _, _ in renderer.drawn]
        assert drawn == [views()[batch[i]].name for i in expected]
        path = [set(), *(sets[i] for i in expected)]
        loaded[order] = engine.stats.loaded
        assert loaded[order] == sum(len(b - a) for a, b in pairwise(path))
        _close(engine)
    assert PRESETS["clm"].order == "tsp"
    assert loaded["tsp"] < 0.9 * loaded["given"]


# ---------------------------------------------------------------------- rows that cross


class Calls:
    """Stands between an engine and its host's worker, and notes what is asked for.

    Attributes:
        made: whether it is an update, and ids.
        hold: called on the worker's thread before the next update, which waits for it.
    """

    def __init__(self, engine: Engine) -> None:
        worker = engine.model.appearance.worker
        self.made: list[tuple[bool, set[int]]] = []
        self.hold: Callable[[], object] | None = None
        self._submit, worker.submit = worker.submit, self.submit  # type: ignore[method-assign]
        self._look, worker.lookahead = worker.lookahead, self.look  # type: ignore[method-assign]

    def submit(self, ids: np.ndarray, grads: Any, *, ready: Any, **options: Any) -> int:
        self.made.append((True, set(ids.tolist())))
        hold, self.hold = self.hold, None
        return self._submit(ids, grads, ready=hold or ready, **options)

    def look(self, ids: np.ndarray, **options: Any) -> int:
        self.made.append((False, set(ids.tolist())))
        return self._look(ids, **options)

    def take(self) -> list[tuple[bool, set[int]]]:
        """The calls since this was last asked."""
        made, self.made = self.made, []
        return made


def test_every_row_of_a_batch_crosses_the_link_once_each_way() -> None:
    engine = _engine(PRESETS["best"], Limits(residents=0))
    before = (0, 0, 0)
    for k, batch in enumerate(BATCHES):
        _step(engine, batch, *BATCHES[k + 1 : k + 2])
        stats = engine.stats
        now = stats.loaded, stats.stored, stats.union
        loaded, stored, union = (b - a for a, b in zip(before, now))
        before = now
        assert loaded == stored == union
        assert union >= len(_seen(batch).ids)
        assert union < stats.visible / stats.batches, "views must share rows"
    _close(engine)
