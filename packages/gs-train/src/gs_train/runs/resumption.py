# SPDX-License-Identifier: Apache-2.0
"""A run that goes on from its newest checkpoint: what it must share with its start, its trainer."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace

from gs_train.data import FROM_PYTHON
from gs_train.engine.together import Sharing
from gs_train.errors import InputError
from gs_train.names import printable
from gs_train.options.config import FitConfig
from gs_train.options.config_file import of_this_version
from gs_train.ranks.first_rows import Ownership
from gs_train.renderers import Renderer
from gs_train.rows.own_rows import OwnRows, OwnSource, lattice_of, own_rows
from gs_train.rows.strands import Lattice
from gs_train.runs.folder import require_same_options
from gs_train.runs.named_snapshots import named_snapshots
from gs_train.runs.offload import (
    choice_for,
    choice_of_blocks,
    choice_of_ranks,
    sharing_of,
    training_views,
)
from gs_train.runs.run import Run
from gs_train.runs.run_rows import damage_of
from gs_train.runs.strategies import Strategy
from gs_train.runs.trainer import Trainer
from gs_train.scene.scene import Scene
from gs_train.sizing.choice import Choice
from gs_train.tide.store_folder import block_rows_of, give_up_snapshots
from gs_train.tide.store_use import StoreUse
from gs_train.world import World


def require_resumable(run: Run, config: FitConfig, digest: str) -> None:
    """Check that a run can go on with options and a capture.

    Args:
        config: the options of now.
        digest: of the capture, see :func:`gs_train.scene.scene.capture_digest`.

    Raises:
        InputError: the rows live elsewhere, an option of the recipe differs, the capture is another
            one, or ``steps`` are fewer than those that are done.
    """
    is_stored = run.store is not None
    if config.offload != "auto" and is_stored != config.is_stored:
        place = "in a store on a drive" if is_stored else "in its checkpoints"
        raise InputError(
            f"--offload must be {run.placing['preset']} as before, got {config.offload}: the "
            f"Gaussians of {run.folder.root} are {place}; a new run with --init "
            f"{run.folder.root} begins with them"
        )
    saved = of_this_version(run.checkpoint.state.get("recipe", {}))
    require_same_options(saved, config.recipe)
    if run.checkpoint.state["capture"] != digest:
        where = "capture" if config.data == FROM_PYTHON else config.data
        raise InputError(
            f"--resume needs the views and the split that the run was started with, {where} "
            "holds others (names, sizes, poses, held-out images or depth maps differ)"
        )
    if config.steps < run.checkpoint.step:
        raise InputError(
            f"--steps must be at least the {run.checkpoint.step:,} that the checkpoint has, "
            f"got {config.steps:,}"
        )


def resumed(
    run: Run,
    config: FitConfig,
    scene: Scene,
    renderer: Renderer,
    strategy: Strategy | None,
    world: World,
) -> tuple[Trainer, Choice]:
    """The trainer of a run that goes on, and where its rows live now. A collective.

    Any number of ranks goes on with what any other number saved.

    Args:
        run: that goes on; :func:`require_resumable` has been called.
        config: the options of now.
        strategy: from Python; None: the one that the options name.

    Raises:
        InputError: the checkpoint is damaged, its store is missing or another one, or the rows do
            not fit.
    """
    views = [view.name for view in training_views(scene)]
    if run.store is not None:
        store, choice = _resumed_store(run, config, scene, renderer)
        trainer = restored_trainer(
            run, renderer, config, choice, strategy, store=store, views=views
        )
        return trainer, choice
    if world.size == 1:
        choice = choice_for(config, scene, run.geometry(), renderer, before=run.placing)
        return restored_trainer(run, renderer, config, choice, strategy, views=views), choice
    world.agree("the newest checkpoint", run.checkpoint.path.name)
    lattice = lattice_of(run.checkpoint, world)
    own = own_rows(run.checkpoint, lattice, rank=world.rank, n_ranks=world.size)
    rows = run.geometry(own.ids)
    choice = choice_of_ranks(config, scene, rows, renderer, world, before=run.placing)
    trainer = restored_trainer(
        run,
        renderer,
        config,
        choice,
        strategy,
        own=own,
        sharing=sharing_of(config, world),
        lattice=lattice,
        views=views,
    )
    return trainer, choice


def _resumed_store(
    run: Run, config: FitConfig, scene: Scene, renderer: Renderer
) -> tuple[StoreUse, Choice]:
    """The store of a run that goes on, without what was written there after its checkpoints."""
    saved = run.store
    assert saved is not None
    folder = saved.folder(run.folder.root, config.store)
    saved.require_in(folder)
    if (rows := block_rows_of(folder)) != config.block_rows:
        raise InputError(
            f"--resume must keep --block-rows {rows} of the store {folder}, got {config.block_rows}"
        )
    config = replace(config, offload=run.placing["preset"])
    choice = choice_of_blocks(config, scene, saved.n_rows, renderer.device)
    assert choice.blocks is not None
    give_up_snapshots(folder, named_snapshots(run.folder.checkpoints))
    named = saved.path if config.store is None else str(config.store.absolute())
    return StoreUse(folder, choice.blocks, named, saved.snapshot), choice


def restored_trainer(
    run: Run,
    renderer: Renderer,
    config: FitConfig,
    choice: Choice,
    strategy: Strategy | None = None,
    own: OwnRows | None = None,
    sharing: Sharing | None = None,
    lattice: Lattice | None = None,
    store: StoreUse | None = None,
    views: Sequence[str] = (),
) -> Trainer:
    """The trainer as it was, with a resumed run's options and place for the rows.

    One line says so where the checkpoint is of an earlier format.

    Args:
        own: the rows of this rank; None: all.
        sharing: with other ranks, of which each restores its own rows.
        lattice: of the rows' strands, where there are other ranks.
        store: that the rows are in; None: they are in the checkpoint.
        views: names of the training views.

    Raises:
        InputError: the checkpoint is damaged.
    """
    if run.checkpoint.is_of_old_format:
        rules = "the run goes on by the rules of this version"
        line = f"has checkpoint format {run.checkpoint.version}: {rules}, with the index of"
        said = f"{run.checkpoint.path} {line} each Gaussian as its key"
        print(printable(said), file=sys.stderr)
    # What a strategy from Python raises is no damage of the checkpoint.
    damage = damage_of(run.checkpoint) if strategy is None else contextlib.nullcontext()
    ownership = None
    if own is not None and lattice is not None:
        ownership = Ownership(own.labels, lattice)
    with damage:
        return Trainer.restore(
            config,
            run.checkpoint if own is None else OwnSource(run.checkpoint, own.ids),
            step=run.checkpoint.step,
            renderer=renderer,
            extent=run.frame.extent,
            means_extent=run.frame.means_extent,
            strategy=strategy,
            preset=choice.preset,
            limits=choice.limits,
            sharing=sharing,
            ownership=ownership,
            store=store,
            views=views,
        )
