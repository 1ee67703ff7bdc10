# SPDX-License-Identifier: Apache-2.0
"""COLMAP's binary model files (little-endian, packed), read without holding what is skipped."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numba import njit

from gs_train.data.colmap_records import (
    CAMERA_MODELS,
    Camera,
    Image,
    Observed,
    PointTable,
    checked_camera,
    checked_image,
)
from gs_train.errors import InputError

CHUNK_BYTES = 4 << 20

_COUNT = struct.Struct("<Q")
_CAMERA = struct.Struct("<iiQQ")  # id, model, width, height; then the parameters, doubles
_IMAGE = struct.Struct("<I7dI")  # id, w x y z, translation, camera; then the name and a NUL
_LONGEST_NAME = 4096
_POINT_BYTES = 51  # id (8), xyz (24), rgb (3), error (8), track length (8); then the track
_TRACK_ELEMENT_BYTES = 8  # image id, index of the 2D point
_LONGEST_TRACK = 1 << 50  # whatever a corrupt file says, so that sums of bytes are numbers
_OBSERVATION = np.dtype([("pixel", "<f8", 2), ("point", "<i8")])


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
    for image, _ in _records_of_images(path, with_observations=False):
        yield image


def read_observations(path: Path) -> Iterator[Observed]:
    """What each image of an ``images.bin`` observes, in file order; InputError where it is
    corrupt."""
    for image, data in _records_of_images(path, with_observations=True):
        seen = np.frombuffer(data, dtype=_OBSERVATION)
        yield Observed(image.id, seen["pixel"], seen["point"])


def _records_of_images(path: Path, *, with_observations: bool) -> Iterator[tuple[Image, bytes]]:
    """Each image, and the bytes of its observations or none."""
    size = path.stat().st_size
    with path.open("rb", buffering=_IMAGE.size + 256) as file:
        n_images = _read_count(file, path, "images", _IMAGE.size + 1 + _COUNT.size)
        for index in range(n_images):
            what = f"image {index} of {n_images}"
            id, *pose, camera_id = _IMAGE.unpack(_exactly(file, _IMAGE.size, path, what, size))
            name = _read_name(file, path, what)
            (n_observations,) = _COUNT.unpack(_exactly(file, _COUNT.size, path, what, size))
            n_bytes = n_observations * _OBSERVATION.itemsize
            end = file.tell() + n_bytes
            if end > size:
                raise _truncated(path, what, end, size)
            data = _exactly(file, n_bytes, path, what, size) if with_observations else b""
            file.seek(end)
            yield checked_image(str(path), id, pose, camera_id, name), data


def read_points(path: Path) -> PointTable:
    """The points of a ``points3D.bin``.

    Records differ in length by their tracks, so finding where they start is a walk; all else is
    vectorised over chunks of `CHUNK_BYTES`.
    """
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        n_points = _read_count(file, path, "points", _POINT_BYTES)
        table = PointTable.empty(n_points)
        offsets = np.empty(CHUNK_BYTES // _POINT_BYTES + 1, dtype=np.int32)
        start, done = _COUNT.size, 0
        while done < n_points:
            file.seek(start)
            chunk = np.frombuffer(file.read(CHUNK_BYTES), dtype=np.uint8)
            n_whole, length = _walk(chunk, n_points - done, offsets)
            if not n_whole:
                raise _truncated(path, f"point {done} of {n_points}", start + _POINT_BYTES, size)
            stop = done + n_whole
            wanted = offsets[:n_whole, None] + np.arange(_POINT_BYTES, dtype=np.int32)
            fields = chunk[wanted]
            table.ids[done:stop] = np.ascontiguousarray(fields[:, :8]).view("<i8")[:, 0]
            table.points[done:stop] = np.ascontiguousarray(fields[:, 8:32]).view("<f8")
            table.colors[done:stop] = fields[:, 32:35]
            lengths = np.ascontiguousarray(fields[:, 43:51]).view("<u8")[:, 0]
            table.track_lengths[done:stop] = np.minimum(lengths, np.uint64(2**31 - 1))
            start, done = start + int(length), stop
            if start > size:
                raise _truncated(
                    path, f"point {done - 1} of {n_points} with its track", start, size
                )
    return table


@njit(cache=True, nogil=True)
def _walk(chunk, n_most, offsets):  # type: ignore[no-untyped-def]
    """How many records, up to ``n_most``, start whole in ``chunk``, and where the next is; fills
    ``offsets``."""
    last = len(chunk) - _POINT_BYTES
    n = position = 0
    while position <= last and n < n_most:
        offsets[n] = position
        n += 1
        length = np.int64(0)
        for k in range(8):  # the last two make it longer than any file, whatever they count for
            byte = np.int64(chunk[position + _POINT_BYTES - 8 + k])
            length += byte << (8 * min(k, 6))
        if length > _LONGEST_TRACK:
            length = np.int64(_LONGEST_TRACK)
        position += int(_POINT_BYTES + _TRACK_ELEMENT_BYTES * length)
    return n, position


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
