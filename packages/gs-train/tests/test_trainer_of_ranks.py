# SPDX-License-Identifier: Apache-2.0
"""Trainers of ranks that would part: all of them find it out, and none waits for the others."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from one_thread import one_threaded
from photographed import photo_config, photographed
from street import street_views
from threads_as_ranks import ThreadWorld, outcomes, results
from torch import Tensor

from gs_train.densify import Changed
from gs_train.densify.peers import NO_PEERS, Peers
from gs_train.engine.batch_drawing import Running, Truth, Unreadable
from gs_train.engine.together import Sharing
from gs_train.errors import CommonError
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS
from gs_train.ranks.cuts import cut
from gs_train.renderers import RenderOptions, make_renderer
from gs_train.renderers.protocol import Rect
from gs_train.renderers.records import TILE
from gs_train.rows.morton import morton_order
from gs_train.rows.operations import RowOperations
from gs_train.runs.strategies import Strategy, StrategyStart
from gs_train.runs.trainer import Trainer
from gs_train.world import Alone, DisagreementError

VIEWS = [3, 4]
N_REMOVED = 5


def _parts(world: ThreadWorld | Alone, *, cuts_views: bool = True) -> dict[str, Any]:
    return {
        "renderer": make_renderer("cpu", RenderOptions()),
        "extent": photographed("street").extent,
        "sharing": Sharing(world, cuts_views=cuts_views),  # type: ignore[arg-type]
    }


def _step(trainer: Trainer, *views: int) -> Changed:
    scene = photographed("street")
    return trainer.train_step([(scene.views[i], scene.photographs[i]) for i in views]).changed


class _Removing:
    """A caller's `Densifier`: removes rows of one rank after each step.

    Args:
        removes: it is this rank that has rows removed.
        reported: what is told of so many rows that this rank has removed.
    """

    def __init__(self, removes: bool, reported: Callable[[int], int]) -> None:
        self._removes = removes
        self._reported = reported

    def observe(self, *_: Any, **__: Any) -> None:
        pass

    def after_step(self, rows: RowOperations, **_: Any) -> Changed:
        removed = torch.arange(N_REMOVED * self._removes)
        rows.replace(removed)
        n_reported = self._reported(len(removed))
        return Changed(pruned=n_reported, rows_changed=bool(n_reported))

    def permute(self, order: Tensor) -> None:
        pass

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        pass


def _removing(world: ThreadWorld, reported: Callable[[Peers, int], int]) -> Strategy:
    def strategy(start: StrategyStart) -> _Removing:
        assert start.peers is not NO_PEERS
        return _Removing(world.rank == 0, lambda n: reported(start.peers, n))

    return strategy


@pytest.mark.parametrize("resort_every", [0.0, 1e-4])
@one_threaded
def test_a_strategy_that_reports_its_own_rank_alone_ends_all_ranks(resort_every: float) -> None:
    def run(world: ThreadWorld) -> None:
        config = photo_config(batch_size=len(VIEWS), resort_every=resort_every)
        strategy = _removing(world, lambda _, n: n)
        trainer = Trainer(config, photographed("street").rows, strategy=strategy, **_parts(world))
        _step(trainer, *VIEWS)

    said = (
        "a strategy must report the changes of all ranks, and after step 1 it reported 5 on rank "
        "0, 0 on rank 1: sum them with StrategyStart.peers.sums"
    )
    for outcome in outcomes(2, run):
        assert isinstance(outcome, DisagreementError)
        assert str(outcome) == said


@pytest.mark.parametrize("resort_every", [0.0, 1e-4])
@one_threaded
def test_a_strategy_that_reports_all_ranks_goes_on(resort_every: float) -> None:
    n_rows = len(photographed("street").rows["means"])

    def run(world: ThreadWorld) -> tuple[int, int, int]:
        config = photo_config(batch_size=len(VIEWS), resort_every=resort_every)
        strategy = _removing(world, lambda peers, n: peers.sums(n)[0])
        trainer = Trainer(config, photographed("street").rows, strategy=strategy, **_parts(world))
        changed = [_step(trainer, *VIEWS).n_changes for _ in range(2)]
        return sum(changed), trainer.n_rows, trainer.sorted_at

    n_removed = 2 * N_REMOVED
    last = (n_removed, n_rows - n_removed, 2 if resort_every else 0)
    assert results(2, run) == [last, last]


@pytest.mark.parametrize("resort_every", [0.0, 1e-4])
@one_threaded
def test_each_rank_sorts_the_rows_that_it_owns(resort_every: float) -> None:
    def run(world: ThreadWorld) -> tuple[list[int], list[int]]:
        config = photo_config(batch_size=len(VIEWS), resort_every=resort_every)
        strategy = _removing(world, lambda peers, n: peers.sums(n)[0])
        trainer = Trainer(config, photographed("street").rows, strategy=strategy, **_parts(world))
        _step(trainer, *VIEWS)
        keys, order = trainer.model.keys.values, morton_order(trainer.model.read("means"))
        return keys.tolist(), keys[order].tolist()

    for keys, in_order in results(2, run):
        assert (keys == in_order) == (resort_every > 0)


@one_threaded
def test_ranks_that_cut_a_view_differently_find_that_out() -> None:
    """They have different numbers of crops."""

    def run(world: ThreadWorld) -> None:
        parts = _parts(world, cuts_views=world.rank == 1)
        trainer = Trainer(photo_config(batch_size=1), photographed("street").rows, **parts)
        _step(trainer, VIEWS[0])

    for outcome in outcomes(3, run):
        assert isinstance(outcome, DisagreementError)
        assert str(outcome).startswith("all ranks must draw the same views, and in step 0 they do")


@one_threaded
def test_several_ranks_restore_with_ownership_and_one_without() -> None:
    def run(world: ThreadWorld) -> None:
        config, parts = photo_config(batch_size=1), _parts(world)
        saved = Trainer(config, photographed("street").rows, **parts).tensors()
        Trainer.restore(config, saved, step=0, **parts)

    for outcome in outcomes(2, run):
        assert isinstance(outcome, ValueError)
        assert str(outcome) == "ownership must be given where the rows are of 2 rank(s)"


@pytest.mark.parametrize(
    ("preset", "limits"),
    [("none", UNLIMITED), ("best", UNLIMITED), ("best", Limits(residents=0))],
    ids=["none", "best", "best on the host"],
)
@pytest.mark.parametrize("culprit", [0, 1])
@one_threaded
def test_a_photograph_that_one_rank_cannot_read_ends_all_before_a_row_changes(
    preset: str, limits: Limits, culprit: int
) -> None:
    """What they have can be saved, and goes on."""
    scene = photographed("street")
    error = OSError(errno.EIO, "Input/output error", "/photographs/7.jpg")

    def run(world: ThreadWorld) -> tuple[str, bool]:
        def photograph(view: int, is_there: bool) -> Truth:
            is_missing = world.rank == culprit and not is_there and view == VIEWS[-1]
            return Unreadable(error) if is_missing else scene.photographs[view]

        def step(is_there: bool) -> None:
            trainer.train_step([(scene.views[i], photograph(i, is_there)) for i in VIEWS])

        config = photo_config(batch_size=len(VIEWS))
        parts = {**_parts(world), "preset": PRESETS[preset], "limits": limits}
        trainer = Trainer(config, scene.rows, **parts)
        step(True)
        before = {name: value.clone() for name, value in trainer.tensors().items()}
        with pytest.raises(CommonError) as raised:
            step(False)
        after = trainer.tensors()
        is_same = all(torch.equal(value, after[name]) for name, value in before.items())
        step(True)
        if preset == "best":
            trainer.model.close()  # type: ignore[attr-defined]
        assert trainer.is_whole
        return str(raised.value), is_same

    said = f"rank {culprit}: /photographs/7.jpg: Input/output error"
    assert results(2, run) == [(said, True)] * 2


@pytest.mark.parametrize("preset", ["none", "best"])
@one_threaded
def test_a_photograph_that_is_missing_ends_a_step_of_one_rank_before_a_row_changes(
    preset: str,
) -> None:
    scene, error = photographed("street"), OSError(errno.EIO, "Input/output error", "/7.jpg")
    parts = {**_parts(Alone(torch.device("cpu"))), "preset": PRESETS[preset]}
    trainer = Trainer(photo_config(batch_size=len(VIEWS)), scene.rows, **parts)
    before = {name: value.clone() for name, value in trainer.tensors().items()}
    truths = [*(scene.photographs[i] for i in VIEWS[:-1]), Unreadable(error)]
    with pytest.raises(OSError, match=r"/7\.jpg"):
        trainer.train_step([(scene.views[i], truth) for i, truth in zip(VIEWS, truths)])
    assert trainer.is_whole
    for name, value in trainer.tensors().items():
        assert torch.equal(value, before[name]), name
    trainer.train_step([(scene.views[i], scene.photographs[i]) for i in VIEWS])
    if preset == "best":
        trainer.model.close()  # type: ignore[attr-defined]


class _Moving(_Removing):
    """Moves the street after each step, so that one of its ends is somewhere in a view."""

    def __init__(self) -> None:
        super().__init__(removes=False, reported=lambda n: n)
        self._n_moves = 0

    def after_step(self, rows: RowOperations, **_: Any) -> Changed:
        step = self._n_moves = self._n_moves + 1
        along = (118 + 7 * math.sin(2 * step)) * (-1) ** step
        means = photographed("street").rows["means"].index_select(0, rows.keys.values)
        rows.overwrite(None, {"means": means + torch.tensor([along, 0.0, 0.0])})
        return Changed()


@one_threaded
def test_cuts_follow_from_what_was_drawn_three_steps_ago() -> None:
    view = street_views(width=16 * TILE, height=2 * TILE, focal=0.4)[30]
    truth = torch.zeros(view.height, view.width, 3, dtype=torch.uint8)

    def run(world: ThreadWorld) -> tuple[list[list[Rect]], list[np.ndarray]]:
        trainer = Trainer(
            photo_config(batch_size=1, resort_every=0),
            photographed("street").rows,
            strategy=lambda _: _Moving(),
            **_parts(world),
        )
        together = trainer.backend.together
        assert together is not None
        cuts, draw = [], together.drawing.draw

        def noted(run: Running, meanwhile: Callable[[], object] | None) -> Tensor:
            cuts.append([microbatch.crop.core for microbatch in run.batch.seen.microbatches])
            return draw(run, meanwhile)

        together.drawing.draw = noted  # type: ignore[method-assign]
        counts = []
        for _ in range(9):
            trainer.train_step([(view, truth)], [[view]] * 2)
            tensors = trainer.tensors()
            counts.append(tensors["columns/counts"][-16:].numpy().copy())
        return cuts, counts

    first, second = results(2, run)
    assert first[0] == second[0]
    cuts, counts = first
    after = {lag: [cut(view.rect, 2, known) for known in counts[:-lag]] for lag in (2, 3, 4)}
    assert cuts[:3] == [cut(view.rect, 2, None)] * 3
    assert cuts[3:] == after[3]
    # Other delays would have given other cuts.
    assert cuts[2:] != after[2]
    assert cuts[4:] != after[4]
