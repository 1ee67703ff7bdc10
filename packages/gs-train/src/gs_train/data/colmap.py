# SPDX-License-Identifier: Apache-2.0
"""COLMAP models: find them, and read their cameras, poses and points, binary or text.

The reader streams: 2D points of images are skipped, or given an image at a time, and tracks of
points are skipped, so memory is bounded by what is returned. Newer models also carry ``rigs`` and
``frames`` files; ``images`` holds the composed pose of every registered image all the same, so
those files are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from gs_train.data import colmap_binary, colmap_text
from gs_train.data.colmap_records import (
    Camera,
    FloatArray,
    Model,
    Observed,
    PointTable,
)
from gs_train.data.files import readable
from gs_train.errors import InputError


def models_in(folder: Path) -> list[Path]:
    """The model folders of a capture: ``sparse/0``, ``sparse/1``, ..., then ``sparse``.

    Returns:
        Folders that hold ``cameras`` and ``images`` and ``points3D``, ``.bin`` or ``.txt``.

    Raises:
        OSError: a folder may not be read.
    """
    sparse = folder / "sparse"
    inner = sorted(
        (p for p in sparse.iterdir() if p.is_dir()) if sparse.is_dir() else (),
        key=lambda p: (*_number(p.name), p.name),
    )
    return [p for p in (*inner, sparse) if _is_model(p)]


def model_itself(folder: Path) -> list[Path]:
    """The folder where it is a model's own, else none.

    Raises:
        OSError: the folder may not be read.
    """
    return [folder] if _is_model(folder) else []


def largest(models: Sequence[Path]) -> Path:
    """The one of some model folders with most images; among equals the first.

    Raises:
        InputError: as :func:`count_images`.
    """
    return models[0] if len(models) == 1 else max(models, key=count_images)


def count_images(folder: Path) -> int:
    """The number of images that a model declares.

    Raises:
        InputError: the file is too short for so many, or may not be read.
    """
    path, reader = _part(folder, "images")
    with readable(path):
        return int(reader.count_images(path))


def read_model(folder: Path) -> Model:
    """Cameras and poses of the model in ``folder``; binary files are preferred to text.

    Args:
        folder: of a model, such as :func:`models_in` finds.

    Returns:
        The model. Quaternions are normalised, as COLMAP does when it reads.

    Raises:
        InputError: a file is truncated or corrupt or may not be read, there are no images, an image
            names a camera that is missing, two images share a name, or a name leaves the image
            folder.

    Cost: one seek and one small read per image, whatever the number of 2D points.
    """
    path, reader = _part(folder, "cameras")
    cameras: dict[int, Camera] = {}
    with readable(path):
        for camera in reader.read_cameras(path):
            if camera.id in cameras:
                raise InputError(f"{path} must not repeat a camera id, got {camera.id} twice")
            cameras[camera.id] = camera

    path, reader = _part(folder, "images")
    with readable(path):
        images = sorted(reader.read_images(path), key=lambda image: image.name)
    if not images:
        raise InputError(f"{path} must hold at least one registered image, got 0")
    for image in images:
        if image.camera_id not in cameras:
            raise InputError(
                f"{path}: the camera of image {image.name} must be one of the "
                f"{len(cameras)} in cameras{path.suffix}, got id {image.camera_id}"
            )
    for first, second in pairwise(images):
        if first.name == second.name:
            raise InputError(f"{path} must not repeat an image name, got {first.name} twice")
    return Model(folder, cameras, tuple(images))


def read_points(folder: Path) -> tuple[FloatArray, NDArray[np.uint8]]:
    """Positions and colours of the model's 3D points, in file order, without their tracks.

    Args:
        folder: of a model, such as :func:`models_in` finds.

    Returns:
        (P, 3) float64 positions in the model's frame and (P, 3) uint8 RGB.

    Raises:
        InputError: the file is truncated or corrupt or may not be read, or a position is not
            finite.

    Cost: as :func:`read_point_table`.
    """
    table = read_point_table(folder)
    return table.points, table.colors


def read_point_table(folder: Path) -> PointTable:
    """The model's 3D points, in file order, with their ids and the lengths of their tracks.

    Args:
        folder: of a model, such as :func:`models_in` finds.

    Raises:
        InputError: as :func:`read_points`.

    Cost: about 0.3 microseconds per point (binary). Memory is the result, 39 bytes a point,
        plus about 30 MiB.
    """
    path, reader = _part(folder, "points3D")
    with readable(path):
        table: PointTable = reader.read_points(path)
    bad = int((~np.isfinite(table.points).all(axis=1)).sum())
    if bad:
        raise InputError(
            f"{path}: points must be finite, got NaN or Inf in {bad} of {len(table.points)}"
        )
    return table


def read_observations(folder: Path) -> Iterator[Observed]:
    """What each image of a model observes, in file order; one image is held at a time.

    Args:
        folder: of a model, such as :func:`models_in` finds.

    Raises:
        InputError: the file is truncated or corrupt or may not be read.
    """
    path, reader = _part(folder, "images")
    with readable(path):
        yield from reader.read_observations(path)


def missing_parts(folder: Path) -> list[str]:
    """Of ``cameras``, ``images`` and ``points3D``: which are no file in ``folder``."""
    return [
        part
        for part in ("cameras", "images", "points3D")
        if not any((folder / f"{part}.{ending}").is_file() for ending in ("bin", "txt"))
    ]


def _is_model(folder: Path) -> bool:
    return not missing_parts(folder)


def _part(folder: Path, part: str) -> tuple[Path, ModuleType]:
    path = folder / f"{part}.bin"
    return (path, colmap_binary) if path.is_file() else (path.with_suffix(".txt"), colmap_text)


def _number(name: str) -> tuple[bool, int]:
    """Sorts folders that are numbers before the rest, and among themselves."""
    is_number = name.isdecimal()  # isdigit is true of superscripts, which int refuses
    return not is_number, int(name) if is_number else 0
