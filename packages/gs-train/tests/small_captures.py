# SPDX-License-Identifier: Apache-2.0
"""Captures of a few small photographs, written in milliseconds, for tests to load and to break."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from gs_train.data.colmap_records import Camera
from gs_train.data.colmap_writer import NamedPose, Observations, write_model

PINHOLE = Camera(1, "PINHOLE", 64, 48, (60.0, 61.0, 32.0, 24.0))
TALL = Camera(2, "SIMPLE_PINHOLE", 30, 50, (40.0, 15.0, 25.0))
LENS = Camera(3, "SIMPLE_RADIAL", 80, 60, (70.0, 40.0, 30.0, -0.1))


def photograph(camera: Camera, seed: int) -> np.ndarray:
    """A smooth picture that differs everywhere and from the others."""
    v, u = np.mgrid[: camera.height, : camera.width]
    waves = [np.sin(u / (7 + seed % 5)), np.cos(v / 6 + seed), np.sin((u + v) / 9)]
    return np.uint8(127 + 100 * np.stack(waves, axis=2))


def write_capture(
    folder: Path, images: Sequence[tuple[str, Camera]], *, points: np.ndarray | None = None
) -> Path:
    poses = []
    for index, (name, camera) in enumerate(images):
        pose = np.eye(4)
        pose[:3, 3] = index, 2, 3
        poses.append(NamedPose(name, camera.id, pose))
        path = folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photograph(camera, index)).save(path)
    points = np.arange(12.0).reshape(4, 3) if points is None else points
    empty = np.empty(0, np.int64)
    write_model(
        folder / "sparse/0",
        list({camera.id: camera for _, camera in images}.values()),
        poses,
        points=points,
        colors=np.full((len(points), 3), 200, np.uint8),
        observations=Observations(empty, empty, np.empty((0, 2))),
    )
    return folder


def damage_the_middle(path: Path) -> None:
    """Header and end of a PNG stay; its pixels cannot be decoded."""
    data = bytearray(path.read_bytes())
    start = data.index(b"IDAT") + 8
    data[start:-16] = bytes(len(data) - 16 - start)
    path.write_bytes(data)
