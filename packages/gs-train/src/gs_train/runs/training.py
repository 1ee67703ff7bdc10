# SPDX-License-Identifier: Apache-2.0
"""One run, from photographs to a trained, scored and written model: what `gs_train.fit` does."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from gs_train.data import FROM_PYTHON, Capture, PhotoReader
from gs_train.errors import InputError
from gs_train.files.atomic import require_writable
from gs_train.losses.lpips import load_lpips
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.options.config import FitConfig, of_this_version
from gs_train.renderers import Renderer
from gs_train.runs.disk import require_room, require_scratch
from gs_train.runs.evaluate import report
from gs_train.runs.folder import RunFolder, require_same_options
from gs_train.runs.lock import RunLock, locked
from gs_train.runs.loop import train
from gs_train.runs.offload import cap_device_memory, choice_for
from gs_train.runs.parts import Parts
from gs_train.runs.point_cloud import write_point_cloud
from gs_train.runs.record import RunRecord, new_run_id
from gs_train.runs.run import Run, Spent, open_capture, renderer_for, require_windows
from gs_train.runs.strategies import Strategy
from gs_train.runs.trainer import Trainer
from gs_train.scene.scene import Scene, capture_digest
from gs_train.sizing.choice import Choice
from gs_train.world import Alone

_NO_PARTS = Parts()


def fit(config: FitConfig, parts: Parts = _NO_PARTS) -> dict[str, Any]:
    """Train, checkpoint, evaluate and write the model; what metrics.json holds is returned.

    Args:
        parts: taken instead of what ``config`` names.

    Raises:
        InputError: something that the user can correct, or another process writes to the folder.
            Found before anything of a run is written, except where only use can show it (a
            photograph that breaks off in the middle, a disk that fills up): then what was trained
            is saved.
        Interrupted: Ctrl-C or SIGTERM, after a checkpoint was written if there was a step.
        StopTraining: ``on_step`` did, and a checkpoint was written.
    """
    RunFolder(config.out).check_place()
    with locked(config.out) as lock:
        return fit_locked(config, lock, parts)


def fit_locked(config: FitConfig, lock: RunLock, parts: Parts = _NO_PARTS) -> dict[str, Any]:
    """:func:`fit` for who has the lock of ``config.out`` already."""
    folder = RunFolder(config.out, lock)
    folder.check(config)
    require_scratch(config)
    if config.trace is not None:
        require_writable(config.trace, option="--trace")
    run = Run.open(config.out) if config.resume else None
    if run is not None:
        parts.require_those_of(run.given, config.out)
    renderer = parts.renderer or renderer_for(config)
    world = Alone(renderer.device)
    cap_device_memory(config, renderer.device)
    lpips = load_lpips(backbone=config.lpips_backbone, device=renderer.device)
    with StopRequest() as stop:
        capture = _capture_of(config, folder, stop, parts)
        for line in capture.notes:
            _say(line)
        scene = Scene.load(capture, renderer.device, run.frame if run else None)
        if run is None:
            trainer, choice = _started(config, scene, renderer, stop, parts.strategy)
            spent = Spent()
            preset = choice.preset.name
            record = RunRecord.of(capture, new_run_id())
            photographs = PhotoReader(capture, skip_broken=config.skip_broken)
        else:
            _check_resumed(run, config, capture_digest(capture))
            run.require_data(capture)
            saved = run.checkpoint.state.get("data")
            photographs = PhotoReader(capture, skip_broken=config.skip_broken, saved=saved)
            before = run.placing
            choice = choice_for(config, scene, run.geometry(), renderer, before=before)
            trainer, spent = run.trainer(renderer, config, choice, parts.strategy), run.spent
            is_done = trainer.step >= config.steps
            preset = before["preset"] if is_done else choice.preset.name
            record = run.record or RunRecord.of(capture, run.id)
        stop.check("the start")
        require_room(trainer, folder)
        folder.prepare(config, record)
        _say(
            f"{len(capture.train)} training and {len(capture.test)} test images, "
            f"{trainer.model.n_rows:,} Gaussians after {trainer.step:,} steps; "
            f"rendering with {renderer.name} on {renderer.device}"
        )
        if trainer.step < config.steps:
            _say(f"offload {choice.preset.name}: {choice.reason}")
        else:
            untraced = "" if config.trace is None else f", and {config.trace} is not written"
            _say(f"no steps are left to train{untraced}; more come with --steps")
        try:
            spent = train(
                trainer, scene, folder, spent, stop, choice, record, photographs, parts, world
            )
            write_point_cloud(
                folder.point_cloud(trainer.step),
                trainer.model,
                choice=config.frame,
                trained=scene.frame,
                world=world,
                say=_say,
            )
            stop.check("the writing of results")
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
                stop=stop,
            )
        except Interrupted as stopped:
            message = f"stopped after step {trainer.step:,} of {config.steps:,}, checkpoint written"
            raise Interrupted(
                stopped.signal_number, f"{message}; go on with: {_again(config, parts)}"
            ) from None


def _again(config: FitConfig, parts: Parts) -> str:
    """How a run that was stopped goes on."""
    if parts.given:
        return f"gs_train.fit(..., resume=True) and the same {', '.join(parts.given)}"
    return shlex.join(["gs-train", "fit", str(config.data), "--out", str(config.out), "--resume"])


def _capture_of(config: FitConfig, folder: RunFolder, stop: StopRequest, parts: Parts) -> Capture:
    if parts.capture is None:
        return open_capture(config, folder, stop)
    require_windows(parts.capture)
    return parts.capture


def _started(
    config: FitConfig,
    scene: Scene,
    renderer: Renderer,
    stop: StopRequest,
    strategy: Strategy | None,
) -> tuple[Trainer, Choice]:
    rows = scene.initial_rows(config, stop)
    choice = choice_for(config, scene, rows, renderer)
    trainer = Trainer(
        config,
        rows,
        renderer=renderer,
        extent=scene.frame.extent,
        strategy=strategy,
        preset=choice.preset,
        limits=choice.limits,
    )
    return trainer, choice


def _check_resumed(run: Run, config: FitConfig, digest: str) -> None:
    saved = of_this_version(run.checkpoint.state.get("recipe", {}))
    require_same_options(saved, config.recipe)
    if run.checkpoint.state["capture"] != digest:
        where = "capture" if config.data == FROM_PYTHON else config.data
        raise InputError(
            f"--resume needs the views and the split that the run was started with, {where} "
            "holds others (names, sizes, poses or held-out images differ)"
        )
    if config.steps < run.checkpoint.step:
        raise InputError(
            f"--steps must be at least the {run.checkpoint.step:,} that the checkpoint has, "
            f"got {config.steps:,}"
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr)
