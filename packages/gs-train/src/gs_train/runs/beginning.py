# SPDX-License-Identifier: Apache-2.0
"""A run that has not begun: its first rows, where they will live, and its trainer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from gs_train.errors import InputError
from gs_train.machine.interrupt import StopRequest
from gs_train.ranks.first_rows import first_rows
from gs_train.renderers import Renderer, Rows
from gs_train.rows.keys import RowKeys
from gs_train.runs.block_figures import expected_line
from gs_train.runs.disk import require_room_to_train
from gs_train.runs.folder import RunFolder
from gs_train.runs.offload import (
    choice_for,
    choice_of_blocks,
    choice_of_ranks,
    sharing_of,
    training_views,
)
from gs_train.runs.start import RunStart
from gs_train.runs.strategies import Strategy
from gs_train.runs.trainer import Trainer
from gs_train.scene.scene import Scene
from gs_train.sizing.choice import Choice
from gs_train.tide.model import StoredModel
from gs_train.tide.store_use import StoreUse
from gs_train.world import World

_LEAST_FOR_CLOUD = 64 << 20
"""Bytes of memory for the points of a cloud, of which a store is made."""


@dataclass(frozen=True, eq=False)
class Beginning:
    """A run that has not begun.

    Attributes:
        choice: where its rows will live.
        n_rows: the first ones.
        trainer: makes the trainer, and the store where there is one. Holds the first rows.
        expected: a line about the store; None: there is none.
    """

    choice: Choice
    n_rows: int
    trainer: Callable[[], Trainer]
    expected: str | None = None


def beginning_of(
    start: RunStart,
    renderer: Renderer,
    strategy: Strategy | None,
    world: World,
    folder: RunFolder,
) -> Beginning:
    """Choose where the first rows of a run will live. A collective.

    Args:
        start: what the run begins with.
        strategy: from Python; None: the one that the options name.
        folder: of the run.

    Raises:
        InputError: the first rows cannot be made, or do not fit.
        Interrupted: a stop was asked for.
    """
    config, scene = start.config, start.scene
    rows: Rows | None = None
    keys: RowKeys | None = None
    n_rows = start.n_streamed()
    if n_rows is None:
        rows, keys = start.in_memory()
        n_rows = len(rows["means"])
    store = expected = None
    if config.is_stored:
        if strategy is not None:
            raise InputError(
                f"--offload {config.offload} trains a fixed number of Gaussians: leave out the "
                "strategy from Python"
            )
        choice = choice_of_blocks(config, scene, n_rows, renderer.device, rows)
        expected = expected_line(config, scene, rows, choice, renderer)
        store = _new_store(start, choice, folder, has_rows=rows is not None)
    elif world.size == 1:
        assert rows is not None
        choice = choice_for(config, scene, rows, renderer)
    else:
        assert rows is not None
        own = first_rows(rows, rank=world.rank, n_ranks=world.size, keys=keys).rows
        choice = choice_of_ranks(config, scene, own, renderer, world)
    make = functools.partial(
        Trainer,
        config,
        rows,
        renderer=renderer,
        extent=scene.frame.extent,
        means_extent=scene.frame.means_extent,
        strategy=strategy,
        preset=choice.preset,
        limits=choice.limits,
        sharing=sharing_of(config, world),
        store=store,
        views=[view.name for view in training_views(scene)],
        row_keys=keys,
    )
    return Beginning(choice, n_rows, make, expected)


def _new_store(start: RunStart, choice: Choice, folder: RunFolder, *, has_rows: bool) -> StoreUse:
    """A store that the first rows are put into, or that is made of them piece by piece."""
    assert choice.blocks is not None
    config = start.config
    named = None if config.store is None else str(config.store.absolute())
    store = StoreUse(folder.store_of(config), choice.blocks, named)
    if has_rows:
        return store
    memory = max(_LEAST_FOR_CLOUD, choice.blocks.places * choice.blocks.block_bytes)
    return replace(store, cloud=start.into_store(memory))


def stored_trainer(begin: Beginning, scene: Scene, folder: RunFolder, stop: StopRequest) -> Trainer:
    """The trainer, whose rows have been written to the drive; where that fails, where the drive has
    no room to train them, or a stop is asked for meanwhile, nothing of the run is left."""
    trainer: Trainer | None = None
    try:
        trainer = begin.trainer()
        rows = cast(StoredModel, trainer.model).rows
        require_room_to_train(rows, training_views(scene), trainer.renderer)
        stop.check("the writing of the store")
    except BaseException:
        if trainer is not None:
            trainer.close()
        folder.discard()
        raise
    return trainer
