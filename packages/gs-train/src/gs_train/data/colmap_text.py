# SPDX-License-Identifier: Apache-2.0
"""COLMAP's text model files, read line by line."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gs_train.data.colmap_records import (
    Camera,
    FloatArray,
    Image,
    checked_camera,
    checked_image,
)
from gs_train.errors import InputError


def read_cameras(path: Path) -> Iterator[Camera]:
    """Cameras of a ``cameras.txt``, in file order; InputError where it is corrupt."""
    for where, line in _records(path):
        fields = line.split()
        try:
            id, width, height = int(fields[0]), int(fields[2]), int(fields[3])
            params = [float(field) for field in fields[4:]]
        except (ValueError, IndexError):
            raise _malformed(where, "CAMERA_ID MODEL WIDTH HEIGHT PARAMS[]", line) from None
        yield checked_camera(where, id, fields[1], width, height, params)


def count_images(path: Path) -> int:
    """The number of images that an ``images.txt`` holds."""
    return sum(1 for _ in _records(path, lines_each=2))


def read_images(path: Path) -> Iterator[Image]:
    """Images of an ``images.txt``, in file order; InputError where it is corrupt."""
    for where, line in _records(path, lines_each=2):
        fields = line.split(maxsplit=9)
        try:
            id, camera_id, name = int(fields[0]), int(fields[8]), fields[9]
            pose = [float(field) for field in fields[1:8]]
        except (ValueError, IndexError):
            raise _malformed(where, "IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME", line) from None
        yield checked_image(where, id, pose, camera_id, name)


def read_points(path: Path) -> tuple[FloatArray, NDArray[np.uint8]]:
    """(P, 3) float64 positions and (P, 3) uint8 colours of a ``points3D.txt``."""
    points, colors = array("d"), array("B")
    for where, line in _records(path):
        fields = line.split(maxsplit=8)
        try:
            xyz = float(fields[1]), float(fields[2]), float(fields[3])
            rgb = int(fields[4]), int(fields[5]), int(fields[6])
            float(fields[7])  # the error: a line cut short has none
            colors.extend(rgb)
        except (ValueError, IndexError, OverflowError):
            raise _malformed(where, "POINT3D_ID X Y Z R G B ERROR TRACK[]", line) from None
        points.extend(xyz)
    return (
        np.array(points, dtype=np.float64).reshape(-1, 3),
        np.array(colors, dtype=np.uint8).reshape(-1, 3),
    )


def _records(path: Path, *, lines_each: int = 1) -> Iterator[tuple[str, str]]:
    """(``file:line``, text) of each record's first line, without comments and blank lines.

    A record's further lines are passed over unread: the 2D points of an image, which may well be
    an empty line.
    """
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        number = 0
        for line in file:
            number += 1
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            yield f"{path}:{number}", line
            for _ in range(lines_each - 1):
                next(file, None)
                number += 1


def _malformed(where: str, expected: str, line: str) -> InputError:
    shown = line if len(line) <= 80 else line[:77] + "..."
    return InputError(f"{where}: line must be '{expected}', got {shown!r}")
