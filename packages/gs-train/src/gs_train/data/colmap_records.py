# SPDX-License-Identifier: Apache-2.0
"""What a COLMAP model consists of, and the checks that both file formats share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gs_train.data import ranges
from gs_train.errors import InputError

FloatArray = NDArray[np.float64]

CAMERA_MODELS: tuple[tuple[str, int], ...] = (
    ("SIMPLE_PINHOLE", 3),
    ("PINHOLE", 4),
    ("SIMPLE_RADIAL", 4),
    ("RADIAL", 5),
    ("OPENCV", 8),
    ("OPENCV_FISHEYE", 8),
    ("FULL_OPENCV", 12),
    ("FOV", 5),
    ("SIMPLE_RADIAL_FISHEYE", 4),
    ("RADIAL_FISHEYE", 5),
    ("THIN_PRISM_FISHEYE", 12),
    ("RAD_TAN_THIN_PRISM_FISHEYE", 16),
    ("SIMPLE_DIVISION", 4),
    ("DIVISION", 5),
    ("SIMPLE_FISHEYE", 3),
    ("FISHEYE", 4),
    ("EUCM", 6),
    ("EQUIRECTANGULAR", 2),
)
"""Name and number of parameters of COLMAP's camera models; the position is the model's id."""

_PARAMETER_COUNTS = dict(CAMERA_MODELS)
_PANORAMAS = frozenset({"EQUIRECTANGULAR"})
_SHARED_FOCAL = frozenset(
    {"SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE"}
    | {"SIMPLE_DIVISION", "SIMPLE_FISHEYE"}
)


@dataclass(frozen=True)
class Camera:
    """One camera of a model.

    Attributes:
        id: COLMAP's camera id.
        model: name, one of `CAMERA_MODELS`.
        width, height: pixels.
        params: float64, in the order that COLMAP documents for the model.
    """

    id: int
    model: str
    width: int
    height: int
    params: tuple[float, ...]

    @property
    def K(self) -> FloatArray:
        """(3, 3) float64 intrinsics, pixels; of every model but EQUIRECTANGULAR."""
        fx = self.params[0]
        fy, cx, cy = (fx, *self.params[1:3]) if self.model in _SHARED_FOCAL else self.params[1:4]
        return np.array([[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]])

    @property
    def distortion(self) -> tuple[float, ...]:
        """The parameters after focal lengths and principal point."""
        return self.params[3 if self.model in _SHARED_FOCAL else 4 :]


@dataclass(frozen=True)
class Image:
    """One registered image of a model.

    Attributes:
        id: COLMAP's image id.
        name: posix path relative to the image folder.
        camera_id: key of the model's cameras.
        world_to_camera: (4, 4) float64; x right, y down, z forward.
    """

    id: int
    name: str
    camera_id: int
    world_to_camera: FloatArray


@dataclass(frozen=True, eq=False)
class PointTable:
    """The 3D points of a model, in file order.

    Attributes:
        ids: (P,) int64, COLMAP's point ids.
        points: (P, 3) float64, the model's frame.
        colors: (P, 3) uint8 RGB.
        track_lengths: (P,) int32, how many images observe each.
    """

    ids: NDArray[np.int64]
    points: FloatArray
    colors: NDArray[np.uint8]
    track_lengths: NDArray[np.int32]

    @classmethod
    def empty(cls, n: int) -> PointTable:
        """Room for ``n`` points."""
        return cls(
            np.empty(n, np.int64), np.empty((n, 3)), np.empty((n, 3), np.uint8), np.empty(n, "i4")
        )


@dataclass(frozen=True, eq=False)
class Observed:
    """The 2D points of an image.

    Attributes:
        image_id: COLMAP's image id.
        pixels: (M, 2) float64; the centre of the first pixel is (0.5, 0.5).
        point_ids: (M,) int64 id of the 3D point of each; -1 without one.
    """

    image_id: int
    pixels: FloatArray
    point_ids: NDArray[np.int64]


@dataclass(frozen=True)
class Model:
    """Cameras and poses of one reconstruction.

    Attributes:
        folder: where it was read.
        cameras: by id.
        images: sorted by name.
    """

    folder: Path
    cameras: dict[int, Camera]
    images: tuple[Image, ...]


def checked_camera(
    where: str, id: int, model: str, width: int, height: int, params: Iterable[float]
) -> Camera:
    """A `Camera` after the checks that both file formats share.

    Args:
        where: file (and line) for the message.

    Raises:
        InputError: unknown model, number of parameters, size, not finite, or out of the ranges of
            `gs_train.data.ranges.require_intrinsics`.
    """
    values = tuple(params)
    if model not in _PARAMETER_COUNTS:
        raise InputError(f"{where}: camera model must be one that COLMAP defines, got {model!r}")
    if len(values) != _PARAMETER_COUNTS[model]:
        raise InputError(
            f"{where}: camera {id} ({model}) must have {_PARAMETER_COUNTS[model]} parameters, "
            f"got {len(values)}"
        )
    if not (0 < width <= ranges.LARGEST_SIDE and 0 < height <= ranges.LARGEST_SIDE):
        raise InputError(
            f"{where}: camera {id} must have sides of 1 to {ranges.LARGEST_SIDE} pixels, "
            f"got {width}x{height}"
        )
    if not np.isfinite(values).all():
        raise InputError(f"{where}: parameters of camera {id} must be finite, got {values}")
    camera = Camera(id, model, width, height, values)
    if model not in _PANORAMAS:
        ranges.require_intrinsics(
            f"{where}: camera {id}", camera.K, camera.distortion, max(width, height)
        )
    return camera


def checked_image(where: str, id: int, pose: Iterable[float], camera_id: int, name: str) -> Image:
    """An `Image` after the checks that both file formats share.

    Args:
        where: file (and line) for the message.
        pose: quaternion w, x, y, z of any length that is no rounding error, then translation
            x, y, z.

    Raises:
        InputError: the pose is not finite, the quaternion is as good as zero or infinite, the
            translation is beyond `gs_train.data.ranges.FARTHEST_COORDINATE`, or the name is empty,
            absolute or climbs out of the image folder.
    """
    values = np.array(tuple(pose), dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError(f"{where}: pose of image {name!r} must be finite, got {values.tolist()}")
    ranges.require_pose(f"{where}: image {name!r}", values)
    length = float(np.linalg.norm(values[:4]))
    if not name or name.startswith("/") or ".." in name.split("/"):
        raise InputError(
            f"{where}: image name must be a path inside the image folder, got {name!r}"
        )
    return Image(id, name, camera_id, _rigid(values[:4] / length, values[4:]))


def _rigid(quaternion: FloatArray, translation: FloatArray) -> FloatArray:
    w, x, y, z = quaternion
    matrix = np.eye(4)
    matrix[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    matrix[:3, 3] = translation
    return matrix
