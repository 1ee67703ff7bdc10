# SPDX-License-Identifier: Apache-2.0
"""Camera paths as files: a few cameras in the frame of the capture, for a path through them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gs_train.errors import InputError
from gs_train.files.atomic import replacing
from gs_train.files.small_files import read_small
from gs_train.scene.camera_paths import PathCamera

FOV_DEGREES = (0.1, 170.0)
"""The least and the greatest vertical field of view of a file."""

_FORMAT = {"format": "gs-train camera path", "version": 1}
_MOST_BYTES = 1 << 26
_MOST_PIXELS = 1 << 15  # of a side
_RIGID = 1e-4  # how far a rotation may be from one


def save_path(path: Path, keys: Sequence[PathCamera]) -> None:
    """Write cameras as JSON, to be read by `load_path`; docs/viewer.md describes the file.

    Args:
        path: the file, replaced when it is complete.
        keys: at least one, all of one size, with square pixels and the principal point in the
            middle.

    Raises:
        ValueError: there is no key, or sizes differ.
        InputError: the disk became full.
    """
    sizes = {(key.width, key.height) for key in keys}
    if len(sizes) != 1:
        raise ValueError(f"keys must be at least one, all of one size, got sizes {sorted(sizes)}")
    ((width, height),) = sizes
    plain = {
        **_FORMAT,
        "width": width,
        "height": height,
        "keys": [
            {
                "camera_to_world": np.linalg.inv(key.world_to_camera)[:3].tolist(),
                "fov_y": _fov_degrees(key),
            }
            for key in keys
        ],
    }
    with replacing(path) as file:
        file.write((json.dumps(plain, indent=1) + "\n").encode())


def load_path(path: Path) -> list[PathCamera]:
    """Read what `save_path` wrote, or somebody's own.

    Returns:
        At least one camera.

    Raises:
        InputError: there is no such file, or it is no camera path.
    """
    try:
        plain = json.loads(read_small(path, most_bytes=_MOST_BYTES))
    except OSError as error:
        raise InputError(f"{path} must be a camera path: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} must be a camera path in JSON: {error}") from None
    if not isinstance(plain, dict) or any(plain.get(k) != v for k, v in _FORMAT.items()):
        raise InputError(f"{path} must be a camera path: it must say {json.dumps(_FORMAT)}")
    try:
        width, height = (_side(plain[name]) for name in ("width", "height"))
        keys = list(plain["keys"])
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path} must be a camera path: {_what(error)}") from None
    if not keys:
        raise InputError(f"{path} must be a camera path: it has no keys")
    cameras = []
    for index, key in enumerate(keys):
        try:
            cameras.append(_camera(key, f"{index:05d}", width, height))
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(f"{path} must be a camera path: key {index}: {_what(error)}") from None
    return cameras


def camera_of(
    name: str, world_to_camera: np.ndarray, fov_y: float, width: int, height: int
) -> PathCamera:
    """A camera with square pixels and the principal point in the middle.

    Args:
        fov_y: vertical field of view, radians.
    """
    focal = height / (2 * math.tan(fov_y / 2))
    K = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    return PathCamera(name, world_to_camera, K, width, height)


def _camera(key: Any, name: str, width: int, height: int) -> PathCamera:
    pose = np.array(key["camera_to_world"], dtype=np.float64)
    if pose.shape != (3, 4) or not np.isfinite(pose).all():
        raise ValueError("camera_to_world must be three rows of four numbers")
    rotation = pose[:, :3]
    if (
        not np.allclose(rotation @ rotation.T, np.eye(3), atol=_RIGID)
        or np.linalg.det(rotation) < 0
    ):
        raise ValueError("camera_to_world must hold a rotation")
    fov = key["fov_y"]
    least, most = FOV_DEGREES
    if type(fov) not in (int, float) or not least <= fov <= most:
        raise ValueError(f"fov_y must be from {least:g} to {most:g} degrees, got {fov!r:.40}")
    world_to_camera = np.linalg.inv(np.vstack((pose, (0, 0, 0, 1))))
    return camera_of(name, world_to_camera, math.radians(fov), width, height)


def _fov_degrees(key: PathCamera) -> float:
    """Of a key, in the range of a file: rounding may lead out of it."""
    least, most = FOV_DEGREES
    return min(max(math.degrees(2 * math.atan(key.height / (2 * float(key.K[1, 1])))), least), most)


def _side(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= _MOST_PIXELS:
        raise ValueError(f"width and height must be from 1 to {_MOST_PIXELS}, got {value!r:.40}")
    return value


def _what(error: Exception) -> str:
    return f"it lacks {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
