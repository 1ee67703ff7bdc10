# SPDX-License-Identifier: Apache-2.0
"""Ranks begin a batch with the list that was found while the batch before was drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from one_thread import one_threaded
from photographed import photographed
from threads_as_ranks import ThreadWorld, results
from torch import Tensor
from trained_by_ranks import Case, batches_of, trainer_of

from gs_train.engine.batch_drawing import Running


@dataclass(frozen=True)
class Began:
    """A batch of one rank.

    Attributes:
        is_listed_early: its rows are those of the early list.
        travelling: rows that travel for all views.
        listed, seen: rows of all views that are listed, and those of them that are really seen.
    """

    is_listed_early: bool
    travelling: int
    listed: int
    seen: int


def _n_set(mask: Tensor) -> int:
    return int(np.unpackbits(mask.cpu().numpy().view(np.uint8)).sum())


def _batches(case: Case, world: ThreadWorld) -> list[Began]:
    """Those of a rank, as they began."""
    trainer, scene, began = trainer_of(case, world), photographed(case.scene), []
    together = trainer.backend.together
    assert together is not None
    draw = together.drawing.draw

    def noted(run: Running, meanwhile: Callable[[], object] | None) -> Tensor:
        batch, seen = run.batch, run.batch.seen
        assert batch.turns is not None
        marked = seen.mask if batch.marks is None else seen.mask[batch.marks]
        is_early = batch.early is not None and batch.early.seen is seen
        travelling = int(batch.turns.counts[world.rank].sum())
        began.append(Began(is_early, travelling, _n_set(seen.mask), _n_set(marked)))
        return draw(run, meanwhile)

    together.drawing.draw = noted  # type: ignore[method-assign]
    steps = batches_of(case)
    for step, views in enumerate(steps):
        upcoming = [[scene.views[i] for i in after] for after in steps[step + 1 : step + 3]]
        trainer.train_step([(scene.views[i], scene.photographs[i]) for i in views], upcoming)
    if case.preset == "best":
        trainer.model.close()  # type: ignore[attr-defined]
    return began


@pytest.mark.parametrize("preset", ["none", "best"])
@one_threaded
def test_every_batch_but_the_first_begins_with_its_early_list(preset: str) -> None:
    case = Case(preset, 4, n_steps=6, first=1)
    of_ranks = results(2, lambda world: _batches(case, world))
    for began in of_ranks:
        assert [batch.is_listed_early for batch in began] == [False] + [True] * 5
        assert all(batch.travelling == batch.listed for batch in began)
    # Rows that no view sees after all travel as empty records.
    assert any(batch.seen < batch.travelling for began in of_ranks for batch in began)
