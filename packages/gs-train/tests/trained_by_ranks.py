# SPDX-License-Identifier: Apache-2.0
"""Runs of ranks along the street, in processes of their own, and the same run on one rank."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
import threads_as_ranks
import torch
from cpu_table_records import TableRecordCpuRenderer
from photographed import LIVELY, photo_config, photographed
from street import drive
from torch import Tensor

from gs_train.checkpoint.row_names import KEYS, STRANDS, row_names
from gs_train.densify import AdcConfig
from gs_train.engine.pace import DrawingPace, HostClock
from gs_train.engine.together import Sharing
from gs_train.errors import InputError
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS
from gs_train.ranks import first_rows
from gs_train.renderers import Renderer, RenderOptions, make_renderer
from gs_train.rows.strands import Lattice, strands_of
from gs_train.runs.trainer import Trainer
from gs_train.world import World


@dataclass(frozen=True)
class Case:
    """A run.

    Attributes:
        cuts_views: see `Sharing`.
        first: of the drive, the step that the run begins with. The very first shows nothing.
        known: batches that are known ahead.
        paces: seed of who draws what, or the pace of each rank; None: as their clocks say.
        residents: see `Limits`.
        owner: of all first rows; None: that of their strands.
        most_of: owner of three quarters of the first rows; the other one is rank 0.
        drawn_by: ``cpu``; ``tables``, the same where splats travel from tables; or ``raster``.
        stopped_at: step after which each rank begins anew from what it has saved; None: none.
        options: others of `FitConfig`.
        scene: whose photographs are trained on.
    """

    preset: str = "none"
    batch_size: int = 12
    n_steps: int = 40
    cuts_views: bool = True
    first: int = 0
    known: int = 2
    paces: int | tuple[int, ...] | None = None
    residents: int | None = None
    absgrad: bool = False
    owner: int | None = None
    most_of: int | None = None
    drawn_by: str = "cpu"
    stopped_at: int | None = None
    options: tuple[tuple[str, Any], ...] = ()
    scene: str = "street"


class GivenPace(DrawingPace):
    """A pace that no clock decides."""

    def __init__(self, pace: int) -> None:
        super().__init__(HostClock())
        self._pace = pace

    def next_batch(self) -> int:
        return self._pace


class Left(NamedTuple):
    """What a rank's run left.

    Attributes:
        losses: of the steps.
        by_row: tensors that have a row for each of the rank's Gaussians, keys among them.
        others: the other tensors of a checkpoint.
        resides: of each step, whether the device updated rows where they lie.
        changes: of each step, rows that came, went or moved.
        photographs: those that were asked for, one after the other.
    """

    losses: list[float]
    by_row: dict[str, np.ndarray]
    others: dict[str, np.ndarray]
    resides: list[bool]
    changes: list[int]
    photographs: list[int]


def trainer_of(
    case: Case, world: World | None = None, saved: dict[str, Tensor] | None = None
) -> Trainer:
    """Density control takes statistics, and does nothing unless the case has options of its own.

    Args:
        saved: what a trainer saved before it was stopped; None: it is a new one.
    """
    scene = photographed(case.scene)
    later = case.n_steps * case.batch_size + 1
    options: dict[str, Any] = {
        "batch_size": case.batch_size,
        "resort_every": 0,
        "opacity_reg": 0.01,
        "scale_reg": 0.01,
        "adc": AdcConfig(refine_start=later, absgrad=case.absgrad),
        "lr": LIVELY,
    }
    config = photo_config(**(options | dict(case.options)))
    how: dict[str, Any] = {
        "renderer": _renderer_of(case),
        "extent": scene.extent,
        "views": [view.name for view in scene.views],
        "preset": PRESETS[case.preset],
        "limits": UNLIMITED if case.residents is None else Limits(residents=case.residents),
        "sharing": None if world is None else Sharing(world, cuts_views=case.cuts_views),
    }
    if saved is not None:
        assert case.stopped_at is not None
        own = None
        if world is not None:
            lattice = Lattice.of_cloud(scene.rows["means"])
            own = first_rows.Ownership(saved["model/strands"], lattice)
        return Trainer.restore(config, saved, step=case.stopped_at, ownership=own, **how)
    with pytest.MonkeyPatch.context() as patched:
        if case.owner is not None:
            assert world is not None
            strand = strands_of(case.owner, world.size)[0]
            patched.setattr(Lattice, "labels", functools.partialmethod(_all_of, strand))
        if case.most_of is not None:
            assert world is not None
            strand = strands_of(case.most_of, world.size)[0]
            patched.setattr(Lattice, "labels", functools.partialmethod(_most_of, strand))
        return Trainer(config, scene.rows, **how)


def _renderer_of(case: Case) -> Renderer:
    if case.drawn_by == "tables":
        return TableRecordCpuRenderer(absgrad=case.absgrad)
    return make_renderer(case.drawn_by, RenderOptions(), absgrad=case.absgrad)


def _all_of(_: Lattice, strand: int, means: Tensor) -> Tensor:
    return torch.full((len(means),), strand, dtype=torch.uint8)


def _most_of(_: Lattice, strand: int, means: Tensor) -> Tensor:
    return torch.where(torch.arange(len(means)) % 4 == 0, 0, strand).to(torch.uint8)


def batches_of(case: Case) -> list[list[int]]:
    n_views = len(photographed(case.scene).views)
    return drive(case.first + case.n_steps, case.batch_size, n_views=n_views)[case.first :]


def run(case: Case, world: World | None = None) -> Left:
    """The run of a rank, or of one without others."""
    torch.set_num_threads(1)
    trainer = trainer_of(case, world)
    scene = photographed(case.scene).on(trainer.renderer.device.type)
    random = Random(f"{case.paces} {0 if world is None else world.rank}")
    steps = batches_of(case)
    losses: list[float] = []
    resides: list[bool] = []
    changes: list[int] = []
    asked: list[int] = []

    def photograph(i: int) -> Tensor:
        asked.append(i)
        return scene.photographs[i]

    for step, batch in enumerate(steps):
        if step == case.stopped_at:
            saved = {name: value.clone() for name, value in trainer.tensors().items()}
            _close(trainer)
            trainer = trainer_of(case, world, saved)
        together = trainer.backend.together
        if together is not None and case.paces is not None:
            given = random.randint(1, 1000)
            if isinstance(case.paces, tuple):
                assert world is not None
                given = case.paces[world.rank]
            together.planner.drawing_pace = GivenPace(given)
        upcoming = [[scene.views[i] for i in of] for of in steps[step + 1 : step + 1 + case.known]]
        pairs = [(scene.views[i], functools.partial(photograph, i)) for i in batch]
        result = trainer.train_step(pairs, upcoming)
        losses.append(float(result.loss))
        changes.append(result.changed.n_changes)
        resides.append(trainer.backend.is_resident)
    tensors = {name: value.cpu().clone().numpy() for name, value in trainer.tensors().items()}
    _close(trainer)
    rows = row_names({name: value.shape for name, value in tensors.items()})
    return Left(
        losses,
        {name: tensors[name] for name in rows},
        {name: value for name, value in tensors.items() if name not in rows},
        resides,
        changes,
        asked,
    )


def _close(trainer: Trainer) -> None:
    if trainer.preset.placement == "split":
        trainer.model.close()  # type: ignore[attr-defined]


def on_rank(world: World, case: Case) -> Left:
    return run(case, world)


def error_of_strangers(world: World, case: Case) -> str:
    """What ends ranks that draw other views from the second step on."""
    drawn = batches_of(case)
    drawn[1][0] = world.rank
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(f"{__name__}.batches_of", lambda _: drawn)
        with pytest.raises(InputError) as raised:
            run(case, world)
    return f"{type(raised.value).__name__}: {raised.value}"


def on_threads(n_ranks: int, case: Case) -> list[Left]:
    """Of threads of this process, which share its device."""
    device = torch.device("cuda:0" if case.drawn_by == "raster" else "cpu")
    photographed(case.scene).on(device.type)  # once
    return threads_as_ranks.on_ranks(n_ranks, device, lambda world: run(case, world))


def on_one(case: Case) -> Left:
    """The run on one rank that has room for all rows."""
    case = replace(case, drawn_by="raster" if case.drawn_by == "raster" else "cpu", stopped_at=None)
    return _on_one(
        replace(case, cuts_views=True, paces=None, owner=None, most_of=None, residents=None)
    )


@functools.cache
def _on_one(case: Case) -> Left:
    return in_order([run(case)])


def in_order(parts: Sequence[Left]) -> Left:
    """What all ranks left together, in the order of keys."""
    first, *others = parts
    for other in others:
        assert other.losses == first.losses
        assert other.resides == first.resides
        assert other.changes == first.changes
        assert other.by_row.keys() == first.by_row.keys()
        _assert_equal(other.others, first.others)
    order = np.argsort(np.concatenate([part.by_row[KEYS] for part in parts]))
    joined = {
        name: np.concatenate([part.by_row[name] for part in parts])[order] for name in first.by_row
    }
    asked = [part.photographs for part in parts]
    return first._replace(by_row=joined, photographs=[*chain(*asked)])


def assert_same(ours: Left, theirs: Left) -> None:
    """The same bits."""
    assert ours.losses == theirs.losses
    assert ours.changes == theirs.changes
    _assert_equal(*(_without_strands(left.by_row) for left in (ours, theirs)))
    assert_same_besides(ours, theirs)


def assert_same_besides(ours: Left, theirs: Left) -> None:
    """The same bits of all that is not of rows: what views cost, and steps."""
    _assert_equal(*(_without_columns(left.others) for left in (ours, theirs)))


def _without_strands(by_row: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value for name, value in by_row.items() if name != STRANDS}


def _without_columns(others: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value for name, value in others.items() if not name.startswith("columns/")}


def _assert_equal(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype, name
        assert np.array_equal(ours[name], value), name
