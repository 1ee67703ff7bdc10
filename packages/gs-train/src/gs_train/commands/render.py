# SPDX-License-Identifier: Apache-2.0
"""``gs-train render``: pictures or a video along a camera path."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from torch import Tensor

from gs_train.commands.shared_frames import cameras_of_first, frames_of_ranks
from gs_train.engine.background import colour_of_scores
from gs_train.errors import InputError
from gs_train.files.agreement import by_first
from gs_train.files.atomic import require_writable
from gs_train.files.video import require_video_writer, write_frames
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import task_progress
from gs_train.options.plain import to_plain
from gs_train.rows.visible import render_view
from gs_train.runs.all_ranks import agree_on_options, kind_of, on_all_ranks
from gs_train.runs.folder import RunFolder
from gs_train.runs.record import RunRecord
from gs_train.runs.run import Run
from gs_train.runs.shared_run import SharedRun
from gs_train.scene.camera_paths import (
    PathCamera,
    ellipse_path,
    interpolated_path,
    keyed_path,
    view_path,
)
from gs_train.scene.path_file import load_path
from gs_train.scene.scene import view_in_frame
from gs_train.sizes import Count
from gs_train.world import World

_PATHS = ("interp", "ellipse", "test")


@dataclass(frozen=True)
class RenderConfig:
    """Render a trained scene along a camera path.

    Attributes:
        dir: output folder of gs-train fit.
        path: interp, a smooth path through the training cameras; ellipse, around the scene; test,
            the held-out views; or a .json file of cameras, as gs-train view saves it.
        to: an .mp4 file, or a folder for PNG files; DIR/renders/PATH when not given.
        frames: of all paths but test.
        fps: of a video.
        renderer: auto takes raster where it can run, else gsplat, else cpu.
        data: take the cameras from this capture; only runs of older versions need it, where theirs
            was moved.
        gpus: number of GPUs of this machine that share the Gaussians and the frames, or all (one
            GPU). With --renderer cpu a number of processes.
    """

    dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    path: Annotated[str, tyro.conf.arg(metavar="{interp,ellipse,test,FILE.json}")] = "interp"
    to: Path | None = None
    frames: Count = 240
    fps: int = 30
    renderer: Literal["auto", "raster", "gsplat", "cpu"] = "auto"
    data: Path | None = None
    gpus: str | None = None

    def __post_init__(self) -> None:
        if self.path not in _PATHS and not self.path.endswith(".json"):
            raise InputError(
                f"--path must be {', '.join(_PATHS)} or a .json file of cameras, got {self.path}"
            )
        for name in ("frames", "fps"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} must be at least 1, got {getattr(self, name)}")


def render(config: RenderConfig) -> None:
    """Render and write the frames, one in memory at a time.

    Where this process is one of several ranks, all of them draw, and rank 0 writes the frames of
    one rank.

    Raises:
        InputError: no run there, no held-out views for the test path or others than the run's, no
            way to write a video, or a place that cannot be written.
        Interrupted: Ctrl-C or SIGTERM.
        ToldError: this rank or another has failed, and a line about it is printed.
    """
    with on_all_ranks(kind_of(config.renderer), RunFolder(config.dir)) as world:
        if world.size == 1:
            _render_alone(config)
        else:
            _render_together(config, world)


def _render_alone(config: RenderConfig) -> None:
    run = Run.open(config.dir)
    to = _to(config, run)
    renderer = run.renderer(config.renderer)
    background = colour_of_scores(run.config.background)
    with StopRequest() as stop:
        cameras = _cameras(config, run.cameras(stop, data=config.data))
        run, model = run.read(renderer.device)

        def frames() -> Iterator[Tensor]:
            with task_progress("rendering frame", len(cameras)) as progress:
                for camera in cameras:
                    stop.check("rendering")
                    view = view_in_frame(camera, run.frame).to(renderer.device)
                    yield render_view(model, view, renderer, background)
                    progress.advance()

        with contextlib.closing(model):
            n = write_frames(to, frames(), fps=config.fps)
    print(f"wrote {n} frames to {to}", file=sys.stderr)


def _render_together(config: RenderConfig, world: World) -> None:
    agree_on_options(world, to_plain(config))
    shared = SharedRun.open(config.dir, world)
    to = Path(by_first(world, lambda: str(_to(config, shared.run))))
    renderer = shared.renderer(config.renderer)
    with StopRequest(ignores_more=True) as stop:
        record = shared.cameras(stop, data=config.data)
        cameras = cameras_of_first(world, lambda: _cameras(config, record))
        model = shared.read(renderer.device)
        views = [view_in_frame(each, shared.run.frame).to(renderer.device) for each in cameras]
        background = colour_of_scores(shared.run.config.background)
        frames = frames_of_ranks(model, views, renderer, world, stop, background)
        if world.rank == 0:
            n = write_frames(to, frames, fps=config.fps)
            print(f"wrote {n} frames to {to}", file=sys.stderr)
        else:
            for _ in frames:
                pass


def _to(config: RenderConfig, run: Run) -> Path:
    """Where frames go.

    Raises:
        InputError: they cannot be written there.
    """
    name = config.path if config.path in _PATHS else Path(config.path).stem
    to = config.to or run.folder.renders / name
    require_video_writer(to)
    is_video = to.suffix.lower() == ".mp4"
    require_writable(to if is_video else to / "frame_00000.png", option="--to")
    return to


def _cameras(config: RenderConfig, record: RunRecord) -> list[PathCamera]:
    """Those of the path.

    Raises:
        InputError: there are no held-out views for the test path, or the file is no camera path.
    """
    if config.path not in _PATHS:
        return keyed_path(load_path(Path(config.path)), config.frames)
    train = [record.views[i] for i in record.train]
    if config.path == "test":
        if not record.test:
            raise InputError("--path test needs held-out views, and this run held out none")
        return view_path([record.views[i] for i in record.test])
    if config.path == "interp":
        return interpolated_path(train, config.frames)
    return ellipse_path(train, config.frames, points=record.points)
