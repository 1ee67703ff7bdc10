# SPDX-License-Identifier: Apache-2.0
"""COLMAP's binary model files (little-endian, packed), read without holding what is skipped."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from gs_train.data.colmap_records import (
    CAMERA_MODELS,
    Camera,
    FloatArray,
    Image,
    checked_camera,
    checked_image,
)
from gs_train.errors import InputError

CHUNK_BYTES = 4 << 20

_COUNT = struct.Struct("<Q")
_CAMERA = struct.Struct("<iiQQ")  # id, model, width, height; then the parameters, doubles
_IMAGE = struct.Struct("<I7dI")  # id, w x y z, translation, camera; then the name and a NUL
_OBSERVATION_BYTES = 24  # x, y (double), id of the 3D point (int64)
_LONGEST_NAME = 4096
_POINT_BYTES = 51  # id (8), xyz (24), rgb (3), error (8), track length (8); then the track
_TRACK_ELEMENT_BYTES = 8  # image id, index of the 2D point


def read_cameras(path: Path) -> Iterator[Camera]:
    """Cameras of a ``cameras.bin``, in file order; InputError where it is corrupt."""
    with path.open("rb") as file:
        size = path.stat().st_size
        for index in range(_read_count(file, path, "cameras", _CAMERA.size)):
            what = f"camera {index}"
            id, model_id, width, height = _CAMERA.unpack(
                _exactly(file, _CAMERA.size, path, what, size)
            )
            if not 0 <= model_id < len(CAMERA_MODELS):
                raise InputError(
                    f"{path}: camera model id of camera {id} must be 0 to "
                    f"{len(CAMERA_MODELS) - 1}, got {model_id}"
                )
            model, n_params = CAMERA_MODELS[model_id]
            params = struct.unpack(f"<{n_params}d", _exactly(file, 8 * n_params, path, what, size))
            yield checked_camera(str(path), id, model, width, height, params)


def count_images(path: Path) -> int:
    """The number of images that an ``images.bin`` declares."""
    with path.open("rb") as file:
        return _read_count(file, path, "images", _IMAGE.size + 1 + _COUNT.size)


def read_images(path: Path) -> Iterator[Image]:
    """Images of an ``images.bin``, in file order; InputError where it is corrupt."""
    size = path.stat().st_size
    with path.open("rb", buffering=_IMAGE.size + 256) as file:
        n_images = _read_count(file, path, "images", _IMAGE.size + 1 + _COUNT.size)
        for index in range(n_images):
            what = f"image {index} of {n_images}"
            id, *pose, camera_id = _IMAGE.unpack(_exactly(file, _IMAGE.size, path, what, size))
            name = _read_name(file, path, what)
            (n_observations,) = _COUNT.unpack(_exactly(file, _COUNT.size, path, what, size))
            end = file.tell() + n_observations * _OBSERVATION_BYTES
            if end > size:
                raise _truncated(path, what, end, size)
            file.seek(end)
            yield checked_image(str(path), id, pose, camera_id, name)


def read_points(path: Path) -> tuple[FloatArray, NDArray[np.uint8]]:
    """(P, 3) float64 positions and (P, 3) uint8 colours of a ``points3D.bin``.

    Records differ in length by their tracks, so finding where they start is a walk; all else is
    vectorised over chunks of `CHUNK_BYTES`.
    """
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        n_points = _read_count(file, path, "points", _POINT_BYTES)
        points = np.empty((n_points, 3), dtype=np.float64)
        colors = np.empty((n_points, 3), dtype=np.uint8)
        start, done = _COUNT.size, 0
        while done < n_points:
            file.seek(start)
            chunk = file.read(CHUNK_BYTES)
            offsets, length = _walk(chunk, n_points - done)
            if not offsets:
                raise _truncated(path, f"point {done} of {n_points}", start + _POINT_BYTES, size)
            stop = done + len(offsets)
            # Bytes 8 to 35 of each record: position and colour.
            wanted = np.array(offsets, dtype=np.int32)[:, None] + np.arange(8, 35, dtype=np.int32)
            fields = np.frombuffer(chunk, dtype=np.uint8)[wanted]
            points[done:stop] = np.ascontiguousarray(fields[:, :24]).view("<f8")
            colors[done:stop] = fields[:, 24:]
            start, done = start + length, stop
            if start > size:
                raise _truncated(
                    path, f"point {done - 1} of {n_points} with its track", start, size
                )
    return points, colors


def _walk(chunk: bytes, n_most: int) -> tuple[list[int], int]:
    """Offsets of up to ``n_most`` records that start whole in ``chunk``, and where the next is."""
    track_length = _COUNT.unpack_from
    last = len(chunk) - _POINT_BYTES
    offsets: list[int] = []
    position = 0
    while position <= last and len(offsets) < n_most:
        offsets.append(position)
        (length,) = track_length(chunk, position + _POINT_BYTES - _COUNT.size)
        position += _POINT_BYTES + _TRACK_ELEMENT_BYTES * length
    return offsets, position


def _read_count(file: BinaryIO, path: Path, what: str, least_bytes: int) -> int:
    size = path.stat().st_size
    (count,) = _COUNT.unpack(_exactly(file, _COUNT.size, path, f"the number of {what}", size))
    most = (size - _COUNT.size) // least_bytes
    if count > most:
        raise InputError(
            f"{path} must hold the {count} {what} that it declares, got {size} bytes, which have "
            f"room for {most} at most; the file is truncated or corrupt"
        )
    return int(count)


def _read_name(file: BinaryIO, path: Path, what: str) -> str:
    name = bytearray()
    while (byte := file.read(1)) != b"\0":
        if not byte or len(name) == _LONGEST_NAME:
            raise InputError(
                f"{path}: the name of {what} must end within {_LONGEST_NAME} bytes, "
                f"got {len(name)} without an end; the file is truncated or corrupt"
            )
        name += byte
    return name.decode("utf-8", "surrogateescape")  # as file names are decoded


def _exactly(file: BinaryIO, n_bytes: int, path: Path, what: str, size: int) -> bytes:
    start = file.tell()
    data = file.read(n_bytes)
    if len(data) != n_bytes:
        raise _truncated(path, what, start + n_bytes, size)
    return data


def _truncated(path: Path, what: str, expected: int, size: int) -> InputError:
    return InputError(
        f"{path} must have at least {expected} bytes to hold {what}, got {size}; "
        "the file is truncated or corrupt"
    )
