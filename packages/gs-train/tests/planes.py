# SPDX-License-Identifier: Apache-2.0
"""Captures with a plane, a mask or a depth map, on all photographs but every third: as a folder and
as arrays; and what runs on both leave."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.data import Capture, load_capture, read_image

WIDTH, HEIGHT = 64, 48
OPTIONS: dict[str, Any] = {
    "renderer": "cpu",
    "batch_size": 2,
    "strategy": "mcmc",
    "cap": 300,
}
ON_CPU = ("--renderer", "cpu", "--batch-size", "2", "--strategy", "mcmc", "--cap", "300")

Plane = Callable[[int], np.ndarray]
"""Gives (HEIGHT, WIDTH) of the photograph with an index."""


def has_plane(i: int) -> bool:
    """Whether the photograph with this index has one."""
    return i % 3 != 1


def folder_with(tiny_capture: Path, folder: Path, name: str, plane: Plane) -> Path:
    """A copy of the capture of 12 views, with planes below ``name``."""
    made = Path(shutil.copytree(tiny_capture, folder))
    for i, view in enumerate(load_capture(made, cache_dir=folder.parent / "cache").views):
        if has_plane(i):
            path = (made / name / view.name).with_suffix(".png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(plane(i)).save(path)
    return made


def arrays_with(capture: Capture, name: str, plane: Plane) -> dict[str, Any]:
    """A capture as arguments of `capture_from_arrays`, with planes under ``name``.

    Args:
        capture: without planes.
    """
    n = len(capture.views)
    return {
        "images": [read_image(view) for view in capture.views],
        "viewmats": np.stack([view.world_to_camera for view in capture.views]),
        "Ks": np.stack([view.K for view in capture.views]),
        name: [plane(i) if has_plane(i) else None for i in range(n)],
        "points": capture.points,
        "colors": capture.colors,
        "names": [view.name for view in capture.views],
    }


class Stored:
    """Planes that are there one at a time.

    Attributes:
        n_read: how often one was asked for.
    """

    def __init__(self, planes: list[Any]) -> None:
        self.planes = planes
        self.n_read = 0

    def __len__(self) -> int:
        return len(self.planes)

    def __getitem__(self, i: int) -> Any:
        self.n_read += 1
        return self.planes[i]


def tensors(out: Path) -> dict[str, torch.Tensor]:
    """Of a run's newest checkpoint."""
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    return load_checkpoint(newest).tensors


def same(ours: Path, theirs: Path) -> bool:
    """Whether two runs have left the same bits."""
    first, second = tensors(ours), tensors(theirs)
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)
