# SPDX-License-Identifier: Apache-2.0
"""``gs-train render``: pictures or a video along a camera path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from torch import Tensor

from gs_train.errors import InputError
from gs_train.files.atomic import require_writable
from gs_train.files.video import require_video_writer, write_frames
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import task_progress
from gs_train.rows.visible import render_view
from gs_train.runs.run import Run
from gs_train.scene.camera_paths import ellipse_path, interpolated_path, view_path
from gs_train.scene.scene import view_in_frame
from gs_train.sizes import Count


@dataclass(frozen=True)
class RenderConfig:
    """Render a trained scene along a camera path.

    Attributes:
        dir: output folder of gs-train fit.
        path: a smooth path through the training cameras, an ellipse around the scene, or the held-
            out views.
        to: an .mp4 file, or a folder for PNG files; DIR/renders/PATH when not given.
        frames: of the interp and ellipse paths.
        fps: of a video.
        renderer: auto takes raster where it can run, else gsplat, else cpu.
        data: take the cameras from this capture; only runs of older versions need it, where theirs
            was moved.
    """

    dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    path: Literal["interp", "ellipse", "test"] = "interp"
    to: Path | None = None
    frames: Count = 240
    fps: int = 30
    renderer: Literal["auto", "raster", "gsplat", "cpu"] = "auto"
    data: Path | None = None

    def __post_init__(self) -> None:
        for name in ("frames", "fps"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} must be at least 1, got {getattr(self, name)}")


def render(config: RenderConfig) -> None:
    """Render and write the frames, one in memory at a time.

    Raises:
        InputError: no run there, no held-out views for the test path or others than the run's, no
            way to write a video, or a place that cannot be written.
        Interrupted: Ctrl-C or SIGTERM.
    """
    run = Run.open(config.dir)
    to = config.to or run.folder.renders / config.path
    require_video_writer(to)
    is_video = to.suffix.lower() == ".mp4"
    require_writable(to if is_video else to / "frame_00000.png", option="--to")
    renderer = run.renderer(config.renderer)
    with StopRequest() as stop:
        record = run.cameras(stop, data=config.data)
        train = [record.views[i] for i in record.train]
        if config.path == "test":
            if not record.test:
                raise InputError("--path test needs held-out views, and this run held out none")
            cameras = view_path([record.views[i] for i in record.test])
        elif config.path == "interp":
            cameras = interpolated_path(train, config.frames)
        else:
            cameras = ellipse_path(train, config.frames, points=record.points)
        run, model = run.read(renderer.device)

        def frames() -> Iterator[Tensor]:
            with task_progress("rendering frame", len(cameras)) as progress:
                for camera in cameras:
                    stop.check("rendering")
                    view = view_in_frame(camera, run.frame).to(renderer.device)
                    yield render_view(model, view, renderer)
                    progress.advance()

        n = write_frames(to, frames(), fps=config.fps)
    print(f"wrote {n} frames to {to}", file=sys.stderr)
