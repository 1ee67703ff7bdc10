# SPDX-License-Identifier: Apache-2.0
"""gs_train: good calls of what its documentation names for use from Python."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import gs_train
from campaigns.misuse.calls import Call, Entry, Room
from gs_train.data import Capture, capture_from_arrays
from gs_train.options.config import FitConfig

_REFUSED = (gs_train.InputError,)


def _config(room: Room) -> Call:
    args = {
        "data": Path("capture"),
        "out": Path("run"),
        "steps": 10,
        "strategy": room.pick("adc", "mcmc"),
        "offload": room.pick("auto", "none", "best"),
        "batch_size": 1,
        "seed": 0,
        "sh_degree": 3,
        "ssim_lambda": 0.2,
        "cap": 1000,
        "image_cache": "1GiB",
        "init_opacity": 0.1,
    }

    def show(config: FitConfig) -> list[object]:
        return [config.steps, config.strategy, config.offload, config.recipe]

    return Call(FitConfig, args, show=show, raises=_REFUSED)


def _bytes_of(room: Room) -> Call:
    config = FitConfig(Path("capture"), Path("run"), device_memory="2GiB")
    name = room.pick("image_cache", "device_memory", "host_memory")
    return Call(config.bytes_of, {"name": name}, raises=_REFUSED)


def _by_strategy(room: Room) -> Call:
    config = FitConfig(Path("capture"), Path("run"), strategy=room.pick("adc", "mcmc"))
    name = room.pick("init_opacity", "init_scale", "opacity_reg", "scale_reg")
    return Call(config.by_strategy, {"name": name})


def _arrays(room: Room) -> dict[str, Any]:
    """A few cameras side by side, with what each sees."""
    n = room.between(3, 5)
    viewmats = np.tile(np.eye(4), (n, 1, 1))
    viewmats[:, 0, 3] = np.arange(n)
    viewmats[:, 2, 3] = 4
    return {
        "images": [room.own(room.rng.integers(0, 256, (12, 16, 3)), np.uint8) for _ in range(n)],
        "viewmats": room.own(viewmats, np.float64),
        "Ks": room.own(np.tile([[20.0, 0, 8], [0, 20, 6], [0, 0, 1]], (n, 1, 1))),
        "masks": [room.own(room.rng.integers(0, 2, (12, 16)), np.uint8) for _ in range(n)],
        "mask": room.pick("ignore", "carve"),
        "points": room.own(room.rng.standard_normal((30, 3)), np.float64),
        "colors": room.own(room.rng.integers(0, 256, (30, 3)), np.uint8),
        "names": [f"{i}.png" for i in range(n)],
        "sizes": [(16, 12)] * n,
        "test_every": 2,
    }


def _capture(room: Room) -> Call:
    def show(capture: Capture) -> list[object]:
        views = capture.views
        cameras = [(v.name, v.world_to_camera, v.K, v.width, v.height) for v in views]
        masks = [capture.mask, *(v.mask is None for v in views)]
        return [cameras, masks, capture.points, capture.colors, capture.train, capture.test]

    return Call(capture_from_arrays, _arrays(room), show=show, raises=_REFUSED)


@functools.cache
def _folder() -> Path:
    """Of this process, for runs."""
    folder = Path(tempfile.mkdtemp(prefix="gs-train-misuse-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _some_capture() -> Capture:
    return capture_from_arrays(**_arrays(Room(0)))


@functools.cache
def _run() -> gs_train.Fitted:
    return gs_train.fit(capture=_some_capture(), out=_folder() / "run", steps=1, renderer="cpu")


def _scores(metrics: dict[str, Any]) -> list[object]:
    return [metrics[name] for name in ("psnr", "ssim", "steps", "n_gaussians")]


def _ignore(report: gs_train.StepReport) -> None:
    pass


def _fit(room: Room) -> Call:
    args = {
        "capture": _some_capture(),
        "out": _folder() / "other",
        "steps": 1,
        "renderer": "cpu",
        "strategy": room.pick("adc", "mcmc"),
        "on_step": _ignore,
        "offload": room.pick("none", "best"),
        "seed": room.below(3),
        "overwrite": True,
    }
    return Call(
        gs_train.fit,
        args,
        fixed=("out", "overwrite"),
        limits={"steps": 3},
        show=lambda fitted: _scores(fitted.metrics),
        raises=_REFUSED,
    )


def _open(room: Room) -> Call:
    folder = _run().folder
    args = {"folder": room.pick(folder, str(folder))}
    return Call(gs_train.Fitted.open, args, show=lambda run: _scores(run.metrics), raises=_REFUSED)


def _rows(room: Room) -> Call:
    return Call(_run().rows, {"frame": room.pick("capture", "trained")}, raises=_REFUSED)


def _evaluate(room: Room) -> Call:
    args = {"capture": _some_capture(), "renderer": "cpu"}
    return Call(_run().evaluate, args, show=_scores, raises=_REFUSED)


ENTRIES = (
    Entry("gs_train.build_info", lambda room: Call(gs_train.build_info, {})),
    Entry("gs_train.FitConfig", _config),
    Entry("gs_train.FitConfig.bytes_of", _bytes_of),
    Entry("gs_train.FitConfig.by_strategy", _by_strategy),
    Entry("gs_train.data.capture_from_arrays", _capture),
    Entry("gs_train.fit", _fit),
    Entry("gs_train.Fitted.open", _open),
    Entry("gs_train.Fitted.rows", _rows),
    Entry("gs_train.Fitted.evaluate", _evaluate),
)

MADE_BY_OTHERS = ("gs_train.Fitted", "gs_train.StepReport", "gs_train.StepReport.rows")
"""Classes that callers get from a run and do not make."""
