# SPDX-License-Identifier: Apache-2.0
"""Runs that Python starts, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import gs_train
from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.data import load_capture, read_image
from gs_train.densify import AdcConfig

STEPS = 8
# Refinements and re-orderings on the way.
OPTIONS: dict[str, Any] = {
    "steps": STEPS,
    "renderer": "cpu",
    "batch_size": 2,
    "seed": 3,
    "sh_every": 4,
    "resort_every": 0.01,
    "checkpoint_every": 3,
    "adc": AdcConfig(refine_start=2, refine_every=4, reset_every=12, grow_grad2d=1e-5),
}


def state_of(out: Path, step: int = STEPS) -> dict[str, Tensor]:
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    checkpoint = load_checkpoint(newest)
    assert checkpoint.step == step
    return checkpoint.tensors


def assert_same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def trained_plainly(capture: Path, out: Path) -> Path:
    """A run from the folder, without any part from Python."""
    gs_train.fit(data=capture, out=out, **OPTIONS)
    return out


def arrays_of(folder: Path, cache: Path) -> dict[str, Any]:
    """A capture as arguments of `capture_from_arrays`."""
    capture = load_capture(folder, cache_dir=cache)
    return {
        "images": [read_image(view) for view in capture.views],
        "viewmats": np.stack([view.world_to_camera for view in capture.views]),
        "Ks": np.stack([view.K for view in capture.views]),
        "points": capture.points,
        "colors": capture.colors,
        "names": [view.name for view in capture.views],
    }


def stop_at(step: int) -> Callable[[gs_train.StepReport], None]:
    def stop(report: gs_train.StepReport) -> None:
        if report.step == step:
            raise gs_train.StopTraining

    return stop
