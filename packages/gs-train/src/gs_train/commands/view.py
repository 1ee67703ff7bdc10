# SPDX-License-Identifier: Apache-2.0
"""``gs-train view``: a scene in a web browser, drawn on this machine."""

from __future__ import annotations

import getpass
import shlex
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from gs_train.errors import InputError
from gs_train.files.atomic import require_writable
from gs_train.machine.interrupt import StopRequest
from gs_train.names import printable
from gs_train.scene.camera_paths import PathCamera
from gs_train.scene.path_file import load_path
from gs_train.sizes import parse_bytes
from gs_train.viewer.listening import is_loopback, require_port
from gs_train.viewer.opened import Limits, open_scene, run_root
from gs_train.viewer.viewer import Viewer, require_viser

_POLL_S = 0.2


@dataclass(frozen=True)
class ViewConfig:
    """Look at a scene in a web browser. Pictures are drawn here, with all rows and harmonics.

    Attributes:
        scene: output folder of gs-train fit, whose newest checkpoint is shown; folder of a
            checkpoint in one; or a PLY file of Gaussians.
        live: follow a run that trains: its progress, and each new checkpoint.
        host: address to listen on; others than this machine's own let other machines in.
        port: to listen on; 0 takes any free one.
        renderer: auto takes raster where it can run, else gsplat, else cpu.
        device_memory: cap on device memory (what the run says, else all that is free).
        camera_path: file that the page reads its camera path from and saves it to, for gs-train
            render --path; RUN/camera_path.json, or beside the PLY file, when not given.
        data: where the capture of a run is now, if it was moved.
        antialiased: of a PLY file that was trained so.
    """

    scene: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|CHECKPOINT|PLY")]
    live: bool = False
    host: str = "127.0.0.1"
    port: int = 8080
    renderer: Literal["auto", "raster", "gsplat", "cpu"] = "auto"
    device_memory: str | None = None
    camera_path: Path | None = None
    data: Path | None = None
    antialiased: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InputError(f"--port must be from 0 to 65535, got {self.port}")
        if self.device_memory is not None:
            parse_bytes(self.device_memory, option="--device-memory")


def view(config: ViewConfig) -> None:
    """Serve pages until Ctrl-C or SIGTERM, which end it well.

    Raises:
        InputError: viser is missing, the port is taken, nothing of the kind is there, or it is
            damaged.
        Interrupted: Ctrl-C or SIGTERM while the scene was read.
    """
    require_viser()
    require_port(config.host, config.port)
    with StopRequest() as stop, open_viewer(config, stop) as viewer:
        for line in _lines(config, viewer):
            print(line, file=sys.stderr, flush=True)
        while True:
            viewer.check()
            if stop.signal_number is not None:
                break
            time.sleep(_POLL_S)
    print("stopped", file=sys.stderr)


def open_viewer(config: ViewConfig, stop: StopRequest) -> Viewer:
    """The viewer, serving.

    Raises:
        InputError, Interrupted: as `view`.
    """
    if config.live and config.scene.is_file():
        raise InputError(f"--live follows a run, and {config.scene} is a file")
    if config.camera_path is not None:
        require_writable(config.camera_path, option="--camera-path")
    path_file = config.camera_path or _path_file(config.scene)
    keys = _keys_of(path_file)  # before the scene is read, which may take long
    limits = Limits(config.renderer, config.device_memory, config.antialiased)
    scene = open_scene(config.scene, limits, stop)
    try:
        hint = None
        if scene.run is not None:
            root = scene.run.folder.root
            hint = shlex.join(["gs-train", "render", str(root), "--path", str(path_file)])
        return Viewer(
            scene,
            limits,
            host=config.host,
            port=config.port,
            keys=keys,
            path_file=path_file,
            render_hint=hint,
            live=config.live,
            data=config.data,
        )
    except BaseException:
        scene.close()
        raise


def _keys_of(path: Path) -> list[PathCamera]:
    """Of a camera path that there may be."""
    return load_path(path) if path.exists() else []


def _path_file(scene: Path) -> Path:
    root = run_root(scene)
    return scene.with_suffix(".camera_path.json") if root is None else root / "camera_path.json"


def _lines(config: ViewConfig, viewer: Viewer) -> list[str]:
    lines = [f"open {viewer.url} in a browser; Ctrl-C ends"]
    if is_loopback(config.host):
        port, here = viewer.port, socket.gethostname()
        lines.append(
            printable(
                f"from another machine: ssh -L {port}:127.0.0.1:{port} "
                f"{getpass.getuser()}@{here}, then the same address there"
            )
        )
    else:
        lines.append(f"every machine that reaches {config.host}:{viewer.port} may look, too")
    return lines
