# SPDX-License-Identifier: Apache-2.0
"""A scene to look at: of a run, of one checkpoint, or of a PLY file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gs_train.checkpoint import (
    MANIFEST,
    SavedCheckpoint,
    has_checkpoint_name,
    open_checkpoint,
)
from gs_train.data.frame import Frame
from gs_train.errors import InputError
from gs_train.files.ply import sample_means
from gs_train.losses.background import BackgroundKind
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import task_progress
from gs_train.names import printable
from gs_train.options.config import FitConfig
from gs_train.renderers import Renderer
from gs_train.rows.attributes import GEOMETRY_WIDTH, NAMES, appearance_width
from gs_train.rows.ply_source import PlySource
from gs_train.rows.restore import restored_to_look_at
from gs_train.rows.shown import ShownRows
from gs_train.runs.exposures import exposures_of
from gs_train.runs.offload import cap_device_memory
from gs_train.runs.renderer import renderer_for
from gs_train.runs.run import Run
from gs_train.scene.camera_paths import PathCamera
from gs_train.sizing.memory import caps_of, free_on
from gs_train.viewer.frames import COLMAP_UP, frame_of, into, up_and_focus

_SAMPLE = 1 << 16  # rows that tell where a scene without cameras lies

# A row's attributes twice, gathered and as the renderer takes them; what its projection leaves;
# and 24 tiles that it touches, of 28 bytes each.
_ROW_BYTES, _TILES_BYTES = 92, 24 * 28


@dataclass(frozen=True)
class Limits:
    """The renderer and the memory that looking at a scene may take.

    Attributes:
        renderer: its name on the command line.
        device_memory: a size in words; None: what the run says, else all that is free.
        antialiased: of a PLY file.
    """

    renderer: str = "auto"
    device_memory: str | None = None
    antialiased: bool = False


@dataclass(frozen=True, eq=False)
class OpenedScene:
    """Rows that can be drawn, and where to look from.

    Attributes:
        title: what it is, in one printable line.
        model: its rows.
        renderer: that draws them.
        frame: that the rows are in; of a PLY file one in which the scene is of about unit size.
        cameras: of the run, in the capture's frame; empty where none are known.
        train, test: indices into them.
        up: (3,) unit vector, in the rows' frame.
        focus: (3,) what there is to look at, in the rows' frame.
        most_rows: that one drawing may take.
        run: that it is of; None: of none.
        background: that the run was trained over.
        exposures: (3, 4) on the renderer's device of each training photograph, by its index in
            ``cameras``; empty where none were trained.
    """

    title: str
    model: ShownRows
    renderer: Renderer
    frame: Frame
    cameras: tuple[PathCamera, ...]
    train: tuple[int, ...]
    test: tuple[int, ...]
    up: np.ndarray
    focus: np.ndarray
    most_rows: int
    run: Run | None = None
    background: BackgroundKind = "black"
    exposures: Mapping[int, Tensor] = field(default_factory=dict)

    def close(self) -> None:
        """Give the memory of the rows back."""
        self.model.close()


def run_root(path: Path) -> Path | None:
    """The folder of the run that a path leads to, a checkpoint of it or the folder itself; None:
    the path is no folder."""
    if not path.is_dir():
        return None
    return _root_around(path) if _is_checkpoint(path) else path


def open_scene(path: Path, limits: Limits, stop: StopRequest) -> OpenedScene:
    """Read what is at a path.

    Args:
        path: output folder of a run, whose newest checkpoint is taken; folder of a checkpoint; or a
            PLY file of Gaussians.
        stop: looked at while Gaussians are read.

    Raises:
        InputError: nothing of the kind is there, or it is damaged.
        Interrupted: a stop was asked for.
    """
    if path.is_dir():
        if _is_checkpoint(path):
            return _of_run(_run_of(open_checkpoint(path)), limits, stop, is_newest=False)
        return _of_run(Run.open(path), limits, stop, is_newest=True)
    if not path.exists():
        raise InputError(
            f"{path} must be the output folder of a run, a checkpoint or a PLY file, and does not "
            "exist"
        )
    return _of_ply(path, limits, stop)


def reopened(scene: OpenedScene, limits: Limits, stop: StopRequest) -> OpenedScene:
    """The newest checkpoint of the same run, in memory of its own.

    Args:
        stop: looked at while Gaussians are read.

    Raises:
        InputError: it is damaged, or gone.
        Interrupted: a stop was asked for.
    """
    assert scene.run is not None
    run = Run.open(scene.run.folder.root)
    return _of_run(run, limits, stop, is_newest=True, renderer=scene.renderer)


def fits_beside(scene: OpenedScene, saved: SavedCheckpoint) -> bool:
    """Whether another checkpoint of the scene's run can be read while the scene stays."""
    assert scene.run is not None
    if saved.n_rows is None:  # they are in a store, of which a look brings what it needs
        return True
    device = scene.renderer.device
    n_bytes = 4 * sum(int(np.prod(saved.shapes[f"model/{name}"])) for name in NAMES)
    if n_bytes > caps_of(scene.run.config, torch.device("cpu")).host // 2:
        return False
    geometry = 4 * GEOMETRY_WIDTH * (saved.n_rows or 0)
    return device.type != "cuda" or geometry < free_on(device) // 2


def _is_checkpoint(folder: Path) -> bool:
    return has_checkpoint_name(folder.absolute()) or (folder / MANIFEST).exists()


def _root_around(checkpoint: Path) -> Path:
    return checkpoint.absolute().parent.parent


def _run_of(saved: SavedCheckpoint) -> Run:
    """The run of a checkpoint, at that checkpoint.

    Raises:
        InputError: it lies in no run's folder.
    """
    root = _root_around(saved.path)
    if (root / "config.yml").is_file():
        return Run.open(root, saved)
    raise InputError(
        f"{saved.path} must lie in the folder of its run, beside config.yml; {root} has none"
    )


def _of_run(
    run: Run,
    limits: Limits,
    stop: StopRequest,
    *,
    is_newest: bool,
    renderer: Renderer | None = None,
) -> OpenedScene:
    if limits.device_memory is not None:
        config = dataclasses.replace(run.config, device_memory=limits.device_memory)
        run = dataclasses.replace(run, config=config)
    renderer = run.renderer(limits.renderer) if renderer is None else renderer
    if limits.device_memory is not None:  # the run's own may be of a larger device
        cap_device_memory(run.config, renderer.device)
    model: ShownRows
    if is_newest:
        run, model = run.read(renderer.device, stop)
    else:
        model = run.model(renderer.device, stop=stop)
    cameras: tuple[PathCamera, ...] = ()
    train: tuple[int, ...] = ()
    test: tuple[int, ...] = ()
    if run.record is not None:
        cameras, train, test = run.record.views, run.record.train, run.record.test
    up, focus = up_and_focus(cameras, run.frame) if cameras else (COLMAP_UP, np.zeros(3))
    name = run.folder.root.absolute().name
    return OpenedScene(
        title=printable(f"{name}, step {run.checkpoint.step:,}"),
        model=model,
        renderer=renderer,
        frame=run.frame,
        cameras=cameras,
        train=train,
        test=test,
        up=up,
        focus=focus,
        most_rows=_most_rows(run.config, model, renderer),
        run=run,
        background=run.config.background,
        exposures=exposures_of(run, renderer.device),
    )


def _of_ply(path: Path, limits: Limits, stop: StopRequest) -> OpenedScene:
    # Options of a run that there is none of: only its memory counts.
    config = FitConfig(
        data=path,
        out=path,
        renderer=limits.renderer,  # type: ignore[arg-type]  # the command line checked it
        device_memory=limits.device_memory,
        antialiased=limits.antialiased,
    )
    config.bytes_of("device_memory")
    frame, focus = frame_of(sample_means(path, _SAMPLE))
    with task_progress("reading Gaussians") as progress:
        total = 0

        def report(n_rows: int) -> None:
            stop.check(printable(f"the reading of {path}"))
            progress.update(n_rows, total)

        source = PlySource(path, transform=into(frame), report=report)
        if not source.n_rows:
            raise InputError(f"{path} must hold Gaussians, got none")
        total = source.n_rows
        renderer = renderer_for(config)
        cap_device_memory(config, renderer.device)
        room = _room(config, renderer.device)
        model = restored_to_look_at(source, device=renderer.device, room=room)
    return OpenedScene(
        title=printable(path.name),
        model=model,
        renderer=renderer,
        frame=frame,
        cameras=(),
        train=(),
        test=(),
        up=COLMAP_UP,
        focus=focus,
        most_rows=_most_rows(config, model, renderer),
    )


def _room(config: FitConfig, device: torch.device) -> int:
    """Bytes of the device that may still be taken."""
    room = caps_of(config, device).device
    return min(room, free_on(device)) if device.type == "cuda" else room


def _most_rows(config: FitConfig, model: ShownRows, renderer: Renderer) -> int:
    """Rows that one drawing has memory for, beside the model."""
    width = GEOMETRY_WIDTH + appearance_width(model.sh_degree)
    each = 2 * 4 * width + _ROW_BYTES + _TILES_BYTES
    return max(1024, int(0.8 * _room(config, renderer.device)) // each)
