# SPDX-License-Identifier: Apache-2.0
"""How soon does the viewer show a large scene, and how fast does it follow the camera?

Decides whether a scene of a given size can be looked at on a machine at hand. A survey of the
synthetic city is written as a capture, and trained for a few steps once for each way to keep the
rows, by a command of its own. The run is then opened as ``gs-train view`` opens it, and drawn by
the viewer's loop. What the page adds is left out: a JPEG picture on its way to a browser.

    opening          until rows can be drawn
    first picture    the first one after that, in which kernels are compiled
    coarse, fine     until the coarse and the fine picture are there, after a jump to a camera far
                     from the one before
    flight           pictures a second while the camera moves on by a hundredth of its height

    PYTHONPATH=benchmarks:benchmarks/tide \\
        python benchmarks/train/bench_viewer.py --n 20_000_000 --offload best tide --folder /dev/shm

On a CPU try

    ... bench_viewer.py --n 100_000 --seen 5000 --views 24 --size 160 90 --offload none tide
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from gs_train.machine.interrupt import StopRequest
from gs_train.viewer.opened import Limits, OpenedScene, open_scene
from gs_train.viewer.pictures import Pictures
from gs_train.viewer.places import Place, place_of
from gs_train.viewer.render_loop import RenderLoop
from gs_train.viewer.request import Picture, Request
from harness import Record, add_json_option

_STEP = 0.01  # of a flight, in heights of the camera


@dataclass
class Page:
    """Asks for pictures as a page does, and notes when they come.

    Attributes:
        came: each picture with its time, since the last request.
    """

    scene: OpenedScene
    longest: int
    came: list[tuple[float, Picture]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._loop = RenderLoop(Pictures(lambda: self.scene, None))
        self._loop.join(0, self._take, self._fail)

    def look(self, place: Place, *, rests: bool) -> list[tuple[float, Picture]]:
        """Milliseconds until each picture of a place came, and the picture: the coarse one, and
        the fine one if the camera rests."""
        self.came.clear()
        view = place.view(self.longest)
        asked = time.perf_counter()
        self._loop.ask(0, Request(view, (view.width, view.height)))
        self._loop.step()
        while rests and not self._loop.is_idle:
            self._loop.step()
        return [(1e3 * (at - asked), picture) for at, picture in self.came]

    def _take(self, picture: Picture) -> None:
        self.came.append((time.perf_counter(), picture))

    @staticmethod
    def _fail(error: Exception) -> None:
        raise error


def look(run: Path, options: argparse.Namespace, record: Record, axes: dict[str, Any]) -> None:
    """Open a run and look at it; adds its lines."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    scene = open_scene(run, Limits(options.renderer, options.device_memory), StopRequest())
    try:
        opening = time.perf_counter() - started
        places = [place_of(camera, scene.frame) for camera in scene.cameras]
        page = Page(scene, max(options.size))
        ((first_ms, _), *_) = page.look(places[0], rests=True)
        far = [places[k * len(places) // (options.jumps + 1)] for k in range(1, options.jumps + 1)]
        jumps = [page.look(place, rests=True) for place in far]
        started = time.perf_counter()
        flown = [page.look(place, rests=False) for place in _flight(far[-1], options.frames)]
        flight = len(flown) / (time.perf_counter() - started)
        scale = flown[-1][0][1].pixels.shape[1] / places[0].size(max(options.size))[0]
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        facts = {"peak_device_bytes": peak, "scale": scale, "n_gaussians": scene.model.n_rows}
    finally:
        scene.close()
    preset = axes.pop("preset")
    coarse, fine = ([jump[k][0] for jump in jumps] for k in (0, -1))
    for what, samples, unit in (
        ("opening", [opening], "s"),
        ("first picture", [first_ms], "ms"),
        ("coarse", coarse, "ms"),
        ("fine", fine, "ms"),
        ("flight", [flight], "pictures/s"),
    ):
        record.add(preset, samples, unit, axes=axes | {"what": what}, **facts)
        middle = sorted(samples)[len(samples) // 2]
        print(f"{preset:6s} {what:14s} {middle:9.2f} {unit}", flush=True)


def _flight(place: Place, n: int) -> list[Place]:
    """To the right, step by step. A scene lies about one unit from its cameras."""
    found = []
    for k in range(1, n + 1):
        pose = place.camera_to_world.copy()
        pose[:3, 3] += k * _STEP * pose[:3, 0]
        found.append(replace(place, camera_to_world=pose))
    return found


def trained(folder: Path, offload: str, options: argparse.Namespace) -> Path:
    """A run of a few steps, by the command."""
    run = folder / offload
    given = {
        "init": folder / "points.ply", "offload": offload, "strategy": "fixed", "order": "tiles",
        "renderer": options.renderer, "steps": options.steps, "batch-size": 4, "max-side": "off",
        "test-every": 0,
    }  # fmt: skip
    command = [sys.executable, "-m", "gs_train", "fit", str(folder / "capture"), f"--out={run}"]
    command += ["--no-point-cloud", *(f"--{name}={value}" for name, value in given.items())]
    subprocess.run(command, check=True)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=20_000_000, help="Gaussians")
    parser.add_argument("--seen", type=int, default=480_000, help="that a view sees, about")
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--size", type=int, nargs=2, default=[1920, 1080])
    parser.add_argument("--offload", nargs="+", default=["best", "tide"], help="as gs-train's")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--jumps", type=int, default=12)
    parser.add_argument("--frames", type=int, default=60, help="of the flight")
    parser.add_argument("--device-memory", help="as gs-train view's")
    parser.add_argument("--renderer", default="auto")
    parser.add_argument("--folder", type=Path, help="where a temporary folder is made")
    add_json_option(parser)
    options = parser.parse_args()
    record = Record(options.json)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="viewer-") as name:
        folder = Path(name)
        script = Path(__file__).parents[1] / "tide" / "survey_on_disk.py"
        command = [sys.executable, str(script), str(folder / "capture")]
        command += [f"--{of}={getattr(options, of)}" for of in ("n", "seen", "views", "renderer")]
        command += [f"--points={folder / 'points.ply'}", "--size", *map(str, options.size)]
        # As the path of this script, whose own folder Python adds by itself.
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run(command, check=True, env=os.environ | path)
        for offload in options.offload:
            axes = {"preset": offload, "size": options.size, "gaussians": options.n}
            look(trained(folder, offload, options), options, record, axes)
            record.write()


if __name__ == "__main__":
    main()
