# SPDX-License-Identifier: Apache-2.0
"""``gs-train eval``, and the report that ends every run."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import tyro

from gs_train.engine.background import colour_of_scores
from gs_train.files.agreement import by_each, by_first
from gs_train.files.file_lock import folder_lock
from gs_train.files.pictures import write_comparison
from gs_train.files.small_files import read_small
from gs_train.losses.lpips import Lpips, load_lpips, missing_for_lpips
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.options.config import FitConfig
from gs_train.options.plain import to_plain
from gs_train.renderers import Renderer
from gs_train.rows.operations import Model
from gs_train.rows.shown import ShownRows
from gs_train.runs.all_ranks import agree_on_options, kind_of, on_all_ranks
from gs_train.runs.folder import RunFolder
from gs_train.runs.metrics import ImageScore, write_metrics
from gs_train.runs.parts import Parts
from gs_train.runs.report.page import write_report
from gs_train.runs.run import Run
from gs_train.runs.run_state import Spent
from gs_train.runs.scores import N_PICTURES, Picture, score_views, title_of_renders
from gs_train.runs.scores_of_ranks import score_views_of_ranks
from gs_train.runs.shared_run import SharedRun
from gs_train.scene.export_frame import ExportFrame
from gs_train.scene.scene import Scene
from gs_train.world import Alone, World

_MOST_BYTES = 1 << 28
"""Of metrics.json, which has some hundred bytes for each test image."""


@dataclass(frozen=True)
class EvalConfig:
    """Score the newest checkpoint of a run on its held-out images.

    Attributes:
        dir: output folder of gs-train fit.
        renderer: auto takes raster where it can run, else gsplat, else cpu.
        lpips_backbone: file with LPIPS's network weights; the run's own when not given.
        data: where the capture is now, if it was moved.
        exposure: score also the right halves of images, with an affine colour fitted to the left
            halves, as runs with fit's --exposure are scored.
        gpus: number of GPUs of this machine that share the Gaussians and the images, or all (one
            GPU). With --renderer cpu a number of processes.
    """

    dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    renderer: Literal["auto", "raster", "gsplat", "cpu"] = "auto"
    lpips_backbone: Path | None = None
    data: Path | None = None
    exposure: bool = False
    gpus: str | None = None


_NO_PARTS = Parts()


def evaluate_on_ranks(config: EvalConfig) -> dict[str, Any]:
    """:func:`evaluate` by all ranks that this process is one of, with the scores of one rank.

    Raises:
        ToldError: this rank or another has failed, and a line about it is printed.
    """
    with on_all_ranks(kind_of(config.renderer), RunFolder(config.dir)) as world:
        if world.size == 1:
            return evaluate(config)
        agree_on_options(world, to_plain(config))
        shared = SharedRun.open(config.dir, world)
        renderer = shared.renderer(config.renderer)
        backbone = config.lpips_backbone or shared.run.config.lpips_backbone
        lpips = load_lpips(backbone=backbone, device=renderer.device)
        with StopRequest(ignores_more=True) as stop:
            capture = shared.capture(stop, data=config.data)
            by_each(world, lambda: shared.run.require_data(capture))
            model = shared.read(renderer.device)
            run = shared.run
            scene = Scene.load(capture, renderer.device, run.frame)
            frame = shared.export_frame(run.config.frame).name
            return _anew(
                run,
                model,
                scene,
                renderer=renderer,
                lpips=lpips,
                stop=stop,
                frame=frame,
                fits_colours=config.exposure,
                world=world,
            )


def evaluate(config: EvalConfig, parts: Parts = _NO_PARTS) -> dict[str, Any]:
    """Score the run and write its metrics.json, comparison.png and report.html anew.

    A ``fit --resume`` that ends meanwhile writes results of a later step: these stay, and one line
    says that the scores of the earlier step were not written.

    Args:
        parts: the capture and the renderer are taken from here, where given.

    Returns:
        What metrics.json holds.

    Raises:
        InputError: no run there, or its photographs are gone or others.
        Interrupted: Ctrl-C or SIGTERM.
    """
    run = Run.open(config.dir)
    if parts.capture is None:
        run.require_capture_on_disk()
    renderer = parts.renderer or run.renderer(config.renderer)
    backbone = config.lpips_backbone or run.config.lpips_backbone
    lpips = load_lpips(backbone=backbone, device=renderer.device)
    with StopRequest() as stop:
        if parts.capture is None:
            capture = run.capture(stop, data=config.data)
        else:
            capture = parts.capture
            run.require_capture(capture)
        run.require_data(capture)
        run, model = run.read(renderer.device)
        with contextlib.closing(model):
            scene = Scene.load(capture, renderer.device, run.frame)
            frame = ExportFrame.of(run.config.frame, scene.frame, model).name
            return _anew(
                *(run, model, scene),
                renderer=renderer,
                lpips=lpips,
                stop=stop,
                frame=frame,
                fits_colours=config.exposure,
                world=None,
            )


def _anew(
    run: Run,
    model: ShownRows,
    scene: Scene,
    *,
    renderer: Renderer,
    lpips: Lpips | None,
    stop: StopRequest,
    frame: str,
    fits_colours: bool,
    world: World | None,
) -> dict[str, Any]:
    """The `report` of a run's newest checkpoint, beside whoever writes the run."""
    return report(
        model,
        scene,
        run.folder,
        run.spent,
        config=run.config,
        step=run.checkpoint.step,
        preset=run.placing["preset"],
        run_id=run.id,
        renderer=renderer,
        lpips=lpips,
        stop=stop,
        frame=frame,
        fits_colours=fits_colours,
        keep_later=True,
        world=world,
    )


def report(
    model: ShownRows,
    scene: Scene,
    folder: RunFolder,
    spent: Spent,
    *,
    config: FitConfig,
    step: int,
    preset: str,
    run_id: str | None,
    renderer: Renderer,
    lpips: Lpips | None,
    stop: StopRequest,
    frame: str,
    fits_colours: bool = False,
    keep_later: bool = False,
    world: World | None = None,
) -> dict[str, Any]:
    """Score the held-out views; write metrics.json, comparison.png and report.html; print one line.

    A collective. All ranks score; rank 0 writes and prints.

    Args:
        model: the rows of this rank.
        frame: whose frame the run's rows are exported in.
        fits_colours: score right halves with colours fitted, too, though the run has no exposures.
        keep_later: leave the files as they are where they are of a step after ``step``, or of
            another run than ``run_id``; for whoever does not hold the run's lock.
        world: of the ranks; None: there is one.

    Returns:
        What metrics.json holds.

    Raises:
        Interrupted: a stop was asked for before the views had their scores; or after, and all is
            written but the pictures of the worst views.
    """
    fits_colours = fits_colours or config.exposure
    how: dict[str, Any] = {
        "renderer": renderer,
        "lpips": lpips,
        "stop": stop,
        "skip_broken": config.skip_broken,
        "background": colour_of_scores(config.background),
        "fits_colours": fits_colours,
    }
    world = world or Alone(renderer.device)
    n_rows = int(world.gather(model.n_rows).sum())

    def look(indices: Sequence[int], **how: Any) -> tuple[list[ImageScore], list[Picture]]:
        if world.size == 1:
            return score_views(model, scene, indices, **how)
        return score_views_of_ranks(cast(Model, model), scene, indices, world=world, **how)

    scores, pictures = look(scene.capture.test, **how)
    worst: list[Picture] = []
    stopped: Interrupted | None = None
    try:
        _, worst = look(_worst(scores), **how | {"lpips": None, "is_quiet": True})
    except Interrupted as asked:  # the scores are written first, without these pictures
        stopped = asked

    def write() -> dict[str, Any]:
        with folder_lock(folder.root):  # no other process writes between the look and the writing
            later = _later_results(folder.metrics, step, run_id) if keep_later else None
            if later is not None:
                print(_not_written(later, folder, step, run_id), file=sys.stderr)
                return later
            if pictures:
                write_comparison(folder.comparison, pictures, title=title_of_renders(config))
            metrics = write_metrics(
                folder.metrics,
                images=scores,
                steps=step,
                seconds=spent.seconds,
                images_per_second=spent.images / spent.seconds if spent.seconds else 0.0,
                n_gaussians=n_rows,
                peak_device_bytes=spent.peak_device_bytes,
                peak_device_reserved_bytes=spent.peak_device_reserved_bytes,
                peak_host_bytes=spent.peak_host_bytes,
                preset=preset,
                renderer=renderer.name,
                seed=config.seed,
                run_id=run_id,
                lpips_net=lpips.net if lpips else None,
                lpips_missing=None if lpips else missing_for_lpips(),
                is_fitted=fits_colours,
                figures={**spent.figures, "frame": frame},
            )
            write_report(folder.report, metrics, config=config, log=folder.log, worst=worst)
        print(_summary(metrics, folder), file=sys.stderr)
        if "lpips_missing" in metrics:
            print(metrics["lpips_missing"], file=sys.stderr)
        return metrics

    written = by_first(world, write)
    if stopped is not None:
        raise stopped
    return written


def _worst(scores: Sequence[ImageScore]) -> list[int]:
    """The held-out views with the lowest PSNR, the lowest first."""
    lowest = sorted(scores, key=lambda score: score.psnr)[:N_PICTURES]
    return [score.index for score in lowest]


def _later_results(path: Path, step: int, run_id: str | None) -> dict[str, Any] | None:
    """What metrics.json holds where it is of a step after ``step`` or of another run; else None."""
    try:
        metrics: dict[str, Any] = json.loads(read_small(path, most_bytes=_MOST_BYTES))
        is_later = metrics["steps"] > step or metrics.get("run_id") != run_id
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None  # no such file, or no results in it
    return metrics if is_later else None


def _not_written(later: dict[str, Any], folder: RunFolder, step: int, run_id: str | None) -> str:
    of = f"step {later['steps']:,}" if later.get("run_id") == run_id else "another run"
    return (
        f"{folder.metrics} holds results of {of} and stays as it is: the scores of step {step:,} "
        "are not written (remove the file to have them written)"
    )


def _summary(metrics: dict[str, Any], folder: RunFolder) -> str:
    def shown(key: str, decimals: int) -> str:
        value = metrics[key]
        return f"{value:.{decimals}f}" if isinstance(value, float) else str(value)

    fitted = ""
    if "fitted_psnr" in metrics:
        fitted = (
            f" (right halves after a fit of colours to the left: PSNR {shown('fitted_psnr', 2)}, "
            f"SSIM {shown('fitted_ssim', 4)}, LPIPS {shown('fitted_lpips', 4)})"
        )
    return (
        f"PSNR {shown('psnr', 2)}, SSIM {shown('ssim', 4)}, LPIPS {shown('lpips', 4)} on "
        f"{len(metrics['images'])} test images{fitted}; {metrics['n_gaussians']:,} Gaussians after "
        f"{metrics['steps']:,} steps, {metrics['images_per_second']:.1f} images/s; "
        f"results in {folder.root}"
    )
