# SPDX-License-Identifier: Apache-2.0
"""``gs-train demo``: the whole way on a small made-up capture, with nothing to download."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gs_train.data import write_demo_capture
from gs_train.densify import AdcConfig
from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.runs.folder import RunFolder
from gs_train.runs.lock import locked
from gs_train.runs.training import fit_locked
from gs_train.sizes import Count

_CAPTURE = "capture"


@dataclass(frozen=True)
class DemoConfig:
    """Make a small capture, train it, score it and write the model. Takes a few minutes on two CPU
    cores.

    Attributes:
        out: folder for the capture and the run.
        steps: optimizer updates.
        renderer: auto takes raster where it can run, else gsplat, else cpu.
        seed: of the scene and the training.
        overwrite: remove an earlier demo in out.
    """

    out: Path = Path("gs-demo")
    steps: Count = 400
    renderer: Literal["auto", "raster", "gsplat", "cpu"] = "auto"
    seed: int = 0
    overwrite: bool = False

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.out / "run"


def demo(config: DemoConfig) -> None:
    """Write the capture below ``out`` and fit it.

    Raises:
        InputError: ``out`` holds an earlier demo, or see :func:`gs_train.runs.training.fit`.
    """
    capture, run = config.out / _CAPTURE, config.run
    if not config.overwrite and (capture.exists() or run.exists()):
        raise InputError(
            f"--out {config.out} holds an earlier demo: add --overwrite to make it again, "
            "or choose another folder"
        )
    options = FitConfig(
        data=capture,
        out=run,
        steps=config.steps,
        renderer=config.renderer,
        seed=config.seed,
        overwrite=config.overwrite,
        sh_every=max(config.steps // 3, 1),
        # A short run: densify early, and leave the end to settle.
        adc=AdcConfig(refine_start=100, refine_stop=config.steps // 2 + 1),
    )
    RunFolder(run).check_place()
    with locked(run) as lock:  # before the capture changes under a run that trains on it
        RunFolder(run).check(options)
        print(f"writing a capture of a made-up scene to {capture}", file=sys.stderr)
        write_demo_capture(capture, seed=config.seed)
        fit_locked(options, lock)
    print(f"look at {run / 'comparison.png'}: truth, render, error", file=sys.stderr)
