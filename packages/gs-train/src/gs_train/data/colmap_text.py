# SPDX-License-Identifier: Apache-2.0
"""COLMAP's text model files, read line by line."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gs_train.data.colmap_records import (
    Camera,
    Image,
    Observed,
    PointTable,
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
        yield _image(where, line)


def read_observations(path: Path) -> Iterator[Observed]:
    """What each image of an ``images.txt`` observes, in file order; InputError where it is
    corrupt."""
    seen: list[str] = []
    for where, line in _records(path, lines_each=2, further=seen):
        image = _image(where, line)
        fields = seen[0].split() if seen else []
        try:
            values = np.array(fields, dtype=np.float64).reshape(-1, 3)
            if not np.isfinite(values).all():
                raise ValueError("numbers must be finite")
            ids = values[:, 2].astype(np.int64)
        except ValueError:
            expected = "POINTS2D[] as X Y POINT3D_ID"
            raise _malformed(f"{where} and the next", expected, seen[0]) from None
        yield Observed(image.id, values[:, :2], ids)


def _image(where: str, line: str) -> Image:
    fields = line.split(maxsplit=9)
    try:
        id, camera_id, name = int(fields[0]), int(fields[8]), fields[9]
        pose = [float(field) for field in fields[1:8]]
    except (ValueError, IndexError):
        raise _malformed(where, "IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME", line) from None
    return checked_image(where, id, pose, camera_id, name)


def read_points(path: Path) -> PointTable:
    """The points of a ``points3D.txt``."""
    ids, points, colors, lengths = array("q"), array("d"), array("B"), array("i")
    for where, line in _records(path):
        fields = line.split(maxsplit=8)
        try:
            id = int(fields[0])
            xyz = float(fields[1]), float(fields[2]), float(fields[3])
            rgb = int(fields[4]), int(fields[5]), int(fields[6])
            float(fields[7])  # the error: a line cut short has none
            ids.append(id)
            colors.extend(rgb)
        except (ValueError, IndexError, OverflowError):
            raise _malformed(where, "POINT3D_ID X Y Z R G B ERROR TRACK[]", line) from None
        points.extend(xyz)
        lengths.append(len(fields[8].split()) // 2 if len(fields) > 8 else 0)
    return PointTable(
        np.array(ids, dtype=np.int64),
        np.array(points, dtype=np.float64).reshape(-1, 3),
        np.array(colors, dtype=np.uint8).reshape(-1, 3),
        np.array(lengths, dtype=np.int32),
    )


def _records(
    path: Path, *, lines_each: int = 1, further: list[str] | None = None
) -> Iterator[tuple[str, str]]:
    """(``file:line``, text) of each record's first line, without comments and blank lines.

    Args:
        further: gets a record's further lines, before the record is yielded; None: these lines are
            passed over unread. They are the 2D points of an image, which may well be an empty line.
    """
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        number = 0
        for line in file:
            number += 1
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            where = f"{path}:{number}"
            lines = [next(file, "") for _ in range(lines_each - 1)]
            number += lines_each - 1
            if further is not None:
                further[:] = lines
            yield where, line


def _malformed(where: str, expected: str, line: str) -> InputError:
    shown = line if len(line) <= 80 else line[:77] + "..."
    return InputError(f"{where}: line must be '{expected}', got {shown!r}")
