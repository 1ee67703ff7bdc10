# SPDX-License-Identifier: Apache-2.0
"""Captures with a transforms file, and the same captures with a COLMAP model, for tests."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from small_captures import PINHOLE, photograph

from gs_train.data import Capture, load_capture
from gs_train.data.colmap_records import Camera
from gs_train.data.colmap_writer import NamedPose, Observations, write_model

POINTS = np.random.default_rng(0).normal([0, 0, 4], 1, (60, 3))
COLORS = np.random.default_rng(1).integers(0, 256, (60, 3), dtype=np.uint8)
NAMES = tuple(f"{i:02}.png" for i in range(9))
LENS: dict[str, Any] = {"w": 64, "h": 48, "fl_x": 60.0, "fl_y": 61.0, "cx": 32.0, "cy": 24.0}
"""The keys of `small_captures.PINHOLE`."""
ANGLE = 2 * math.atan(32 / 60)  # of 64 pixels at a focal length of 60
SIZE = {"w": 64.0, "h": 48}

TURN = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0]])
"""What nerfstudio does to the world of a COLMAP model."""


def poses(n: int = len(NAMES)) -> list[np.ndarray]:
    """(4, 4) world to camera, all different: beside each other, turned and tilted a little."""
    result = []
    for i in range(n):
        turn, tilt = 0.1 * i - 0.3, 0.05 * i
        about_y = [[np.cos(turn), 0, np.sin(turn)], [0, 1, 0], [-np.sin(turn), 0, np.cos(turn)]]
        about_x = [[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]]
        pose = np.eye(4)
        pose[:3, :3] = np.array(about_x) @ about_y
        pose[:3, 3] = 0.3 * i - 1.2, 0.1 * i, 0.2
        result.append(pose)
    return result


def matrix_of(pose: np.ndarray, moved: np.ndarray | None = None) -> list[list[float]]:
    """A frame's ``transform_matrix``: camera to world with OpenGL's axes.

    Args:
        moved: (3, 4) what was done to the world first.
    """
    matrix = np.linalg.inv(pose)
    matrix[:3, 1:3] *= -1
    if moved is not None:
        matrix = np.vstack([moved, [0, 0, 0, 1]]) @ matrix
    rows: list[list[float]] = matrix.tolist()
    return rows


def write_photographs(folder: Path, names: Sequence[str], camera: Camera = PINHOLE) -> None:
    for index, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photograph(camera, index)).save(path)


def write_points(path: Path, points: np.ndarray = POINTS, colors: np.ndarray = COLORS) -> None:
    """A PLY file as text, with every digit of float64."""
    header = ["ply", "format ascii 1.0", f"element vertex {len(points)}"]
    header += [f"property double {axis}" for axis in "xyz"]
    header += [f"property uchar {name}" for name in ("red", "green", "blue")]
    rows = [
        " ".join([*(repr(float(value)) for value in point), *(str(int(c)) for c in color)])
        for point, color in zip(points, colors)
    ]
    path.write_text("\n".join([*header, "end_header", *rows, ""]))


def frames(names: Sequence[str], moved: np.ndarray | None = None) -> list[dict[str, Any]]:
    """The frames of a transforms file, one for each photograph."""
    return [
        {"file_path": name, "transform_matrix": matrix_of(pose, moved)}
        for name, pose in zip(names, poses(len(names)))
    ]


def write_transforms(path: Path, top: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(top))
    return path


def write_turned(folder: Path, *, turned: bool = True) -> Path:
    """A capture as nerfstudio makes it of a COLMAP model: ``images/``, points in ``sparse_pc.ply``.

    Args:
        turned: whether the world was turned, and ``applied_transform`` says so.
    """
    moved = TURN if turned else None
    names = [f"images/{name}" for name in NAMES]
    write_photographs(folder, names)
    write_points(folder / "sparse_pc.ply", POINTS @ TURN[:, :3].T if turned else POINTS)
    top = {**LENS, "frames": frames(names, moved), "ply_file_path": "sparse_pc.ply"}
    if turned:
        top["applied_transform"] = TURN.tolist()
    write_transforms(folder / "transforms.json", top)
    return folder


def write_colmap(folder: Path) -> Path:
    """The capture of :func:`write_turned` as COLMAP leaves it."""
    write_photographs(folder / "images", NAMES)
    empty = np.empty(0, np.int64)
    write_model(
        folder / "sparse/0",
        [PINHOLE],
        [NamedPose(name, PINHOLE.id, pose) for name, pose in zip(NAMES, poses())],
        points=POINTS,
        colors=COLORS,
        observations=Observations(empty, empty, np.empty((0, 2))),
    )
    return folder


def load(path: Path, **options: Any) -> Capture:
    return load_capture(path, cache_dir=path.parent / "cache", **options)


def write(folder: Path, top: dict[str, Any], names: tuple[str, ...] = NAMES[:3]) -> Path:
    """Photographs beside a transforms.json with ``top``, and frames where it has none."""
    write_photographs(folder, names)
    write_transforms(folder / "transforms.json", {"frames": frames(names), **top})
    return folder
