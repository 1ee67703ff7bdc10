# SPDX-License-Identifier: Apache-2.0
"""One run, from photographs to a trained, scored and written model: what `gs_train.fit` does."""

from __future__ import annotations

import contextlib
import functools
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gs_train.clouds.first_store import first_store, n_first_rows
from gs_train.data import FROM_PYTHON, Capture, PhotoReader
from gs_train.data.depths import not_used
from gs_train.engine.together import Sharing
from gs_train.errors import CommonError, InputError
from gs_train.files.agreement import by_each, by_first
from gs_train.files.atomic import require_writable
from gs_train.files.one_folder import require_one_folder
from gs_train.losses.lpips import load_lpips
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.options.config import FitConfig, for_the_record, of_this_version
from gs_train.options.plain import to_plain
from gs_train.ranks.first_rows import first_rows
from gs_train.renderers import Renderer, Rows
from gs_train.rows.own_rows import lattice_of, own_rows
from gs_train.runs.all_ranks import (
    Kind,
    agree_on_options,
    by_first_unless_stopped,
    check_stop,
    kind_of,
    on_all_ranks,
    stop_of_all,
)
from gs_train.runs.disk import require_room, require_scratch
from gs_train.runs.evaluate import report
from gs_train.runs.folder import RunFolder, require_same_options
from gs_train.runs.held_out import HeldOut
from gs_train.runs.lock import RunLock, locked
from gs_train.runs.loop import train
from gs_train.runs.named_snapshots import named_snapshots
from gs_train.runs.offload import (
    cap_device_memory,
    choice_for,
    choice_of_blocks,
    choice_of_ranks,
    training_views,
)
from gs_train.runs.parts import Parts
from gs_train.runs.photographs import require_same_photographs
from gs_train.runs.point_cloud import write_point_cloud
from gs_train.runs.record import RunRecord, new_run_id
from gs_train.runs.run import Run, Spent, open_capture, renderer_for, require_windows
from gs_train.runs.step_report import StopTraining
from gs_train.runs.strategies import Strategy
from gs_train.runs.trainer import Trainer
from gs_train.scene.export_frame import ExportFrame
from gs_train.scene.scene import Scene, capture_digest
from gs_train.scene.view_extent import with_means_extent
from gs_train.sizing.choice import Choice
from gs_train.tide.store_folder import block_rows_of, give_up_snapshots
from gs_train.tide.store_use import StoreUse
from gs_train.world import Alone, World

_NO_PARTS = Parts()

_LEAST_FOR_CLOUD = 64 << 20
"""Bytes of memory for the points of a cloud, of which a store is made."""


def fit(config: FitConfig, parts: Parts = _NO_PARTS) -> dict[str, Any]:
    """Train, checkpoint, evaluate and write the model; what metrics.json holds is returned.

    Where this process is one of several ranks, all of them do so together. Rank 0 alone prints, and
    writes what is not of its rows alone.

    Args:
        parts: taken instead of what ``config`` names.

    Raises:
        InputError: something that the user can correct, or another process writes to the folder.
            Found before anything of a run is written, except where only use can show it (a
            photograph that breaks off in the middle, a disk that fills up): then what was trained
            is saved.
        Interrupted: Ctrl-C or SIGTERM, after a checkpoint was written if there was a step, and
            comparison.png.
        StopTraining: ``on_step`` did, and both were written.
        ToldError: this rank or another has failed, and a line about it is printed.
    """
    folder = RunFolder(config.out)
    with on_all_ranks(_kind(config, parts), folder) as world:
        if world.size > 1 and parts != _NO_PARTS:
            raise CommonError("parts from Python are for one process, got several ranks")
        by_each(world, folder.check_place)
        require_one_folder(world, config.out, option="--out")
        with contextlib.ExitStack() as held:
            locks: list[RunLock] = []
            by_first(world, lambda: locks.append(held.enter_context(locked(config.out))))
            return fit_locked(config, locks[0] if locks else None, parts, world)


def fit_locked(
    config: FitConfig,
    lock: RunLock | None,
    parts: Parts = _NO_PARTS,
    world: World | None = None,
) -> dict[str, Any]:
    """:func:`fit` for who has the lock of ``config.out`` already.

    Args:
        lock: of rank 0; None on other ranks.
        world: of the ranks; None: there is one.
    """
    folder = RunFolder(config.out, lock)
    alone = Alone(torch.device("cpu"))  # asks nobody, until there is a renderer with its device
    _check_options(config, folder, world or alone)
    run = Run.open(config.out) if config.resume else None
    if run is not None:
        parts.require_those_of(run.given, config.out)
    renderer = parts.renderer or renderer_for(config)
    if world is None or world.size == 1:
        world = Alone(renderer.device)
    cap_device_memory(config, renderer.device)
    lpips = load_lpips(backbone=config.lpips_backbone, device=renderer.device)
    with contextlib.ExitStack() as held:
        own_stop = held.enter_context(StopRequest())
        stop = stop_of_all(own_stop, world)
        # Work that all ranks do is not left by one of them.
        early = own_stop if world.size == 1 else StopRequest()
        capture = _capture_of_all(config, folder, own_stop, early, parts, world)
        for line in capture.notes:
            _say(line)
        if capture.has_depths and config.depth_weight is None:  # of a caller in Python
            _say(not_used("depth maps"))
        scene = Scene.load(capture, renderer.device, run.frame if run else None)
        if run is None:
            scene = with_means_extent(scene, config)
        held_out = HeldOut(config, scene, folder, world, own_stop)
        begin: _Beginning | None = None
        if run is None:
            begin = _beginning(config, scene, renderer, early, parts.strategy, world, folder)
            choice, n_rows = begin.choice, begin.n_rows
            if choice.blocks is None:
                trainer, begin = begin.trainer(), None  # which has the rows
                held.callback(trainer.close)
                n_rows = trainer.n_rows
            spent = Spent()
            preset = choice.preset.name
            record = RunRecord.of(capture, world.broadcast(new_run_id()))
            photographs = PhotoReader(capture, skip_broken=config.skip_broken)
        else:
            _check_resumed(run, config, capture_digest(capture))
            by_first(world, functools.partial(run.require_data, capture))
            saved = run.checkpoint.state.get("data")
            photographs = PhotoReader(capture, skip_broken=config.skip_broken, saved=saved)
            trainer, choice = _resumed(run, config, scene, renderer, parts.strategy, world)
            held.callback(trainer.close)
            n_rows = trainer.n_rows
            spent = run.spent
            is_done = trainer.step >= config.steps
            preset = run.placing["preset"] if is_done else choice.preset.name
            record = run.record or RunRecord.of(capture, run.id)
        require_same_photographs(capture, photographs, world)
        check_stop(stop, world, "the start")
        by_first(world, lambda: require_room(config, n_rows, folder, choice.blocks))
        by_first(world, lambda: folder.prepare(config, record))
        if begin is not None:  # the folder of its store is the run's now
            trainer, begin = _put_into_store(begin, folder, own_stop), None
            held.callback(trainer.close)
        among = "" if world.size == 1 else f" in {world.size} processes"
        _say(
            f"{len(capture.train)} training and {len(capture.test)} test images, "
            f"{trainer.n_rows:,} Gaussians after {trainer.step:,} steps; "
            f"rendering with {renderer.name} on {renderer.device}{among}"
        )
        if trainer.step < config.steps:
            _say(f"offload {choice.preset.name}: {choice.reason}")
        else:
            untraced = "" if config.trace is None else f", and {config.trace} is not written"
            _say(f"no steps are left to train{untraced}; more come with --more-steps")
        try:
            spent = train(
                trainer,
                scene,
                folder,
                spent,
                stop,
                choice,
                record,
                photographs,
                parts,
                world,
                held_out,
            )
            write_point_cloud(
                folder.point_cloud(trainer.step),
                trainer.model,
                choice=config.frame,
                trained=scene.frame,
                world=world,
                say=_say,
            )
            check_stop(stop, world, "the writing of results")
            # As the point cloud's.
            frame = by_first(
                world, lambda: ExportFrame.of(config.frame, scene.frame, trainer.model).name
            )
            return report(
                trainer.model,
                scene,
                folder,
                spent,
                config=config,
                step=trainer.step,
                preset=preset,
                run_id=record.id,
                renderer=renderer,
                lpips=lpips,
                stop=own_stop,
                frame=frame,
                world=world,
            )
        except StopTraining:
            held_out.write_comparison(trainer, _say)
            raise
        except Interrupted as stopped:
            held_out.write_comparison(trainer, _say)
            message = f"stopped after step {trainer.step:,} of {config.steps:,}, checkpoint written"
            raise Interrupted(
                stopped.signal_number,
                f"{message}; go on with: {_again(config, parts, world)}",
                is_common=stopped.is_common,
            ) from None


def _kind(config: FitConfig, parts: Parts) -> Kind:
    """The kind of device of each rank."""
    if parts.renderer is not None:
        return "cuda" if parts.renderer.device.type == "cuda" else "cpu"
    return kind_of(config.renderer)


def _check_options(config: FitConfig, folder: RunFolder, world: World) -> None:
    """Check the options, where they name files too; ranks must have the same. A collective."""
    plain = to_plain(for_the_record(config)) | {"resume": config.resume}
    del plain["out"]  # whose names may differ: it has been looked at
    agree_on_options(world, plain)
    by_first(world, lambda: folder.check(config))
    by_each(world, lambda: require_scratch(config))
    trace = config.trace
    if trace is not None:
        by_first(world, lambda: require_writable(trace, option="--trace"))


def _capture_of_all(
    config: FitConfig,
    folder: RunFolder,
    stop: StopRequest,
    early: StopRequest,
    parts: Parts,
    world: World,
) -> Capture:
    """The photographs and poses, the same on all ranks; rank 0 prepares images. A collective.

    Args:
        stop: looked at by rank 0.
        early: by the others, which find all images prepared.
    """
    found: list[Capture] = []
    by_first_unless_stopped(world, lambda: found.append(_capture_of(config, folder, stop, parts)))
    capture = found[0] if found else _capture_of(config, folder, early, parts)
    world.agree("views, poses and held-out images", capture_digest(capture))
    return capture


def _again(config: FitConfig, parts: Parts, world: World) -> str:
    """How a run that was stopped goes on."""
    if parts.given:
        return f"gs_train.fit(..., resume=True) and the same {', '.join(parts.given)}"
    command = ["gs-train", "fit", str(config.data), "--out", str(config.out), "--resume"]
    return shlex.join([*command, *(["--gpus", str(world.size)] if world.size > 1 else [])])


def _capture_of(config: FitConfig, folder: RunFolder, stop: StopRequest, parts: Parts) -> Capture:
    if parts.capture is None:
        return open_capture(config, folder, stop)
    require_windows(parts.capture)
    return parts.capture


@dataclass(frozen=True, eq=False)
class _Beginning:
    """A run that has not begun.

    Attributes:
        choice: where its rows will live.
        n_rows: the first ones.
        trainer: makes the trainer, and the store where there is one. Holds the first rows.
    """

    choice: Choice
    n_rows: int
    trainer: Callable[[], Trainer]


def _beginning(
    config: FitConfig,
    scene: Scene,
    renderer: Renderer,
    stop: StopRequest,
    strategy: Strategy | None,
    world: World,
    folder: RunFolder,
) -> _Beginning:
    rows: Rows | None = None
    if config.is_stored and config.init is not None:
        n_rows = n_first_rows(config, config.init)
    else:
        rows = scene.initial_rows(config, stop)
        n_rows = len(rows["means"])
    store = None
    if config.is_stored:
        if strategy is not None:
            raise InputError(
                f"--offload {config.offload} trains a fixed number of Gaussians: leave out the "
                "strategy from Python"
            )
        choice = choice_of_blocks(config, scene, n_rows, renderer.device, rows)
        assert choice.blocks is not None
        named = None if config.store is None else str(config.store.absolute())
        store = StoreUse(folder.store_of(config), choice.blocks, named)
        if rows is None:
            memory = max(_LEAST_FOR_CLOUD, choice.blocks.places * choice.blocks.block_bytes)
            assert config.init is not None
            cloud = functools.partial(
                first_store, scene, config, config.init, memory=memory, stop=stop
            )
            store = replace(store, cloud=cloud)
    elif world.size == 1:
        assert rows is not None
        choice = choice_for(config, scene, rows, renderer)
    else:
        assert rows is not None
        own = first_rows(rows, rank=world.rank, n_ranks=world.size).rows
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
        sharing=_sharing(config, world),
        store=store,
        views=[view.name for view in training_views(scene)],
    )
    return _Beginning(choice, n_rows, make)


def _put_into_store(begin: _Beginning, folder: RunFolder, stop: StopRequest) -> Trainer:
    """The trainer, whose rows have been written to the drive; where that fails, or a stop is asked
    for meanwhile, nothing of the run is left."""
    trainer: Trainer | None = None
    try:
        trainer = begin.trainer()
        stop.check("the writing of the store")
    except BaseException:
        if trainer is not None:
            trainer.close()
        folder.discard()
        raise
    return trainer


def _resumed(
    run: Run,
    config: FitConfig,
    scene: Scene,
    renderer: Renderer,
    strategy: Strategy | None,
    world: World,
) -> tuple[Trainer, Choice]:
    """A collective; any number of ranks goes on with what any other number saved."""
    views = [view.name for view in training_views(scene)]
    if run.store is not None:
        store, choice = _resumed_store(run, config, scene, renderer)
        return run.trainer(renderer, config, choice, strategy, store=store, views=views), choice
    if world.size == 1:
        choice = choice_for(config, scene, run.geometry(), renderer, before=run.placing)
        return run.trainer(renderer, config, choice, strategy, views=views), choice
    world.agree("the newest checkpoint", run.checkpoint.path.name)
    lattice = lattice_of(run.checkpoint, world)
    own = own_rows(run.checkpoint, lattice, rank=world.rank, n_ranks=world.size)
    rows = run.geometry(own.ids)
    choice = choice_of_ranks(config, scene, rows, renderer, world, before=run.placing)
    trainer = run.trainer(
        renderer,
        config,
        choice,
        strategy,
        own=own,
        sharing=_sharing(config, world),
        lattice=lattice,
        views=views,
    )
    return trainer, choice


def _resumed_store(
    run: Run, config: FitConfig, scene: Scene, renderer: Renderer
) -> tuple[StoreUse, Choice]:
    """The store of a run that goes on, without what was written there after its checkpoints."""
    saved, folder = run.store, run.store_folder_of(config)
    assert saved is not None
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


def _sharing(config: FitConfig, world: World) -> Sharing:
    return Sharing(world, cuts_views=config.cut_views == "auto")


def _check_resumed(run: Run, config: FitConfig, digest: str) -> None:
    is_stored = run.store is not None
    if config.offload != "auto" and is_stored != config.is_stored:
        place = "in a store on a drive" if is_stored else "in its checkpoints"
        raise InputError(
            f"--offload must be {run.placing['preset']} as before, got {config.offload}: the "
            f"Gaussians of {run.folder.root} are {place}; start a new run from its exported "
            "Gaussians with --init"
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


def _say(line: str) -> None:
    print(line, file=sys.stderr)
