# SPDX-License-Identifier: Apache-2.0
"""One run, from photographs to a trained, scored and written model: what `gs_train.fit` does."""

from __future__ import annotations

import contextlib
import functools
import shlex
import sys
from typing import Any

import torch

from gs_train.data import PhotoReader
from gs_train.data.depths import not_used
from gs_train.errors import CommonError
from gs_train.files.agreement import by_each, by_first
from gs_train.files.atomic import require_writable
from gs_train.files.one_folder import require_one_folder
from gs_train.losses.lpips import load_lpips
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.options.config import FitConfig
from gs_train.options.config_file import for_the_record
from gs_train.options.plain import to_plain
from gs_train.runs.all_ranks import (
    Kind,
    agree_on_options,
    check_stop,
    kind_of,
    on_all_ranks,
    stop_of_all,
)
from gs_train.runs.beginning import Beginning, beginning_of, stored_trainer
from gs_train.runs.block_figures import expected_line
from gs_train.runs.captures import capture_of_all
from gs_train.runs.disk import require_room, require_scratch
from gs_train.runs.endings import newest
from gs_train.runs.evaluate import report
from gs_train.runs.folder import RunFolder
from gs_train.runs.held_out import HeldOut
from gs_train.runs.init_splats import first_splats
from gs_train.runs.lock import RunLock, locked
from gs_train.runs.loop import train
from gs_train.runs.offload import cap_device_memory, few_views
from gs_train.runs.parts import Parts
from gs_train.runs.photographs import require_same_photographs
from gs_train.runs.point_cloud import write_point_cloud
from gs_train.runs.record import RunRecord, new_run_id
from gs_train.runs.renderer import renderer_for
from gs_train.runs.resumption import require_resumable, resumed
from gs_train.runs.run import Run
from gs_train.runs.run_state import Spent
from gs_train.runs.saver import Saver
from gs_train.runs.start import RunStart
from gs_train.runs.step_report import StopTraining
from gs_train.scene.export_frame import ExportFrame
from gs_train.scene.scene import Scene, capture_digest
from gs_train.scene.view_extent import with_means_extent
from gs_train.world import Alone, World
from gs_train.world.timed import TimedWorld

_NO_PARTS = Parts()


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
    else:
        world = TimedWorld(world)
    cap_device_memory(config, renderer.device)
    lpips = load_lpips(backbone=config.lpips_backbone, device=renderer.device)
    with contextlib.ExitStack() as held:
        # One rank that ends amid a save leaves the others without it.
        own_stop = held.enter_context(StopRequest(ignores_more=world.size > 1))
        stop = stop_of_all(own_stop, world)
        # Work that all ranks do is not left by one of them.
        early = own_stop if world.size == 1 else StopRequest()
        capture = capture_of_all(config, folder, own_stop, early, parts.capture, world)
        for line in capture.notes:
            _say(line)
        if capture.has_depths and config.depth_weight is None:  # of a caller in Python
            _say(not_used("depth maps"))
        scene = Scene.load(capture, renderer.device, run.frame if run else None)
        splats = None
        if run is None:
            splats = first_splats(config, scene.frame, folder)
            scene = with_means_extent(scene, config, splats)
        held_out = HeldOut(config, scene, folder, world, own_stop)
        begin: Beginning | None = None
        if run is None:
            start = RunStart(config, scene, splats, early)
            begin = beginning_of(start, renderer, parts.strategy, world, folder)
            choice, n_rows, expected = begin.choice, begin.n_rows, begin.expected
            if choice.blocks is None:
                trainer, begin = begin.trainer(), None  # which has the rows
                held.callback(trainer.close)
                n_rows = trainer.n_rows
            spent = Spent()
            preset = choice.preset.name
            record = RunRecord.of(capture, world.broadcast(new_run_id()))
            photographs = PhotoReader(capture, skip_broken=config.skip_broken)
        else:
            require_resumable(run, config, capture_digest(capture))
            by_first(world, functools.partial(run.require_data, capture))
            saved = run.checkpoint.state.get("data")
            photographs = PhotoReader(capture, skip_broken=config.skip_broken, saved=saved)
            trainer, choice = resumed(run, config, scene, renderer, parts.strategy, world)
            expected = None
            if choice.blocks is not None:
                expected = expected_line(config, scene, None, choice, renderer)
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
            trainer, begin = stored_trainer(begin, scene, folder, own_stop), None
            held.callback(trainer.close)
        among = "" if world.size == 1 else f" in {world.size} processes"
        _say(
            f"{len(capture.train)} training and {len(capture.test)} test images, "
            f"{trainer.n_rows:,} Gaussians after {trainer.step:,} steps; "
            f"rendering with {renderer.name} on {renderer.device}{among}"
        )
        if trainer.step < config.steps:
            _say(f"offload {choice.preset.name}: {choice.reason}")
            if expected is not None:
                _say(expected)
            if (few := few_views(config, world.size)) is not None:
                _say(few)
        else:
            untraced = "" if config.trace is None else f", and {config.trace} is not written"
            _say(f"no steps are left to train{untraced}; more come with --more-steps")
        saver = Saver(trainer, scene, folder, spent, choice, record, photographs, parts, world)
        try:
            spent = train(trainer, scene, folder, stop, saver, photographs, parts, world, held_out)
            if config.point_cloud:
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
            is_saved = trainer.is_whole and saver.saved_step == trainer.step
            if is_saved:  # else this rank alone was stopped, amid a step or a save
                held_out.write_comparison(trainer, _say)
            message = f"stopped after step {trainer.step:,} of {config.steps:,}, "
            message += "checkpoint written" if is_saved else newest(saver.saved_step)
            if saver.saved_step is not None:
                message += f"; go on with: {_again(config, parts, world)}"
            raise Interrupted(stopped.signal_number, message, is_common=stopped.is_common) from None


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


def _again(config: FitConfig, parts: Parts, world: World) -> str:
    """How a run that was stopped goes on."""
    if parts.given:
        return f"gs_train.fit(..., resume=True) and the same {', '.join(parts.given)}"
    command = ["gs-train", "fit", str(config.data), "--out", str(config.out), "--resume"]
    return shlex.join([*command, *(["--gpus", str(world.size)] if world.size > 1 else [])])


def _say(line: str) -> None:
    print(line, file=sys.stderr)
