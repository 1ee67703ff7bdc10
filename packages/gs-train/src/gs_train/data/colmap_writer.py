# SPDX-License-Identifier: Apache-2.0
"""Writes a COLMAP model in its binary format."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gs_train.data.colmap_records import CAMERA_MODELS, Camera, FloatArray
from gs_train.names import encoded


@dataclass(frozen=True)
class Observations:
    """Which point each image sees where, as parallel arrays in any order.

    Attributes:
        image: (M,) int64 index into the images as written.
        point: (M,) int64 index into the points as written.
        pixel: (M, 2) float64, pixels; the centre of the first pixel is (0.5, 0.5).
    """

    image: NDArray[np.int64]
    point: NDArray[np.int64]
    pixel: FloatArray


@dataclass(frozen=True)
class NamedPose:
    """An image to write: its name, camera id and (4, 4) float64 world-to-camera matrix."""

    name: str
    camera_id: int
    world_to_camera: FloatArray


def write_model(
    folder: Path,
    cameras: Sequence[Camera],
    images: Sequence[NamedPose],
    *,
    points: FloatArray,
    colors: NDArray[np.uint8],
    observations: Observations,
) -> None:
    """Write ``cameras.bin``, ``images.bin`` and ``points3D.bin``; ids count from 1.

    Args:
        folder: created when missing; files of the same names are replaced.
        cameras: with the ids that ``images`` refer to.
        images: in the order of their ids.
        points: (P, 3) float64.
        colors: (P, 3) uint8 RGB.
        observations: every point and image may have any number, also none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    by_image = np.lexsort((observations.point, observations.image))
    image, point, pixel = (
        observations.image[by_image],
        observations.point[by_image],
        observations.pixel[by_image],
    )
    bounds = np.searchsorted(image, np.arange(len(images) + 1))
    within = np.arange(len(image)) - bounds[image]  # the index of the 2D point in its image

    _write_cameras(folder / "cameras.bin", cameras)
    with (folder / "images.bin").open("wb") as file:
        file.write(struct.pack("<Q", len(images)))
        for index, pose in enumerate(images):
            mine = slice(bounds[index], bounds[index + 1])
            file.write(struct.pack("<I4d", index + 1, *_quaternion(pose.world_to_camera[:3, :3])))
            file.write(struct.pack("<3dI", *pose.world_to_camera[:3, 3], pose.camera_id))
            file.write(encoded(pose.name) + b"\0" + struct.pack("<Q", len(image[mine])))
            seen = np.empty(len(image[mine]), dtype=[("pixel", "<f8", 2), ("point", "<i8")])
            seen["pixel"], seen["point"] = pixel[mine], point[mine] + 1
            file.write(seen.tobytes())

    by_point = np.lexsort((image, point))
    bounds = np.searchsorted(point[by_point], np.arange(len(points) + 1))
    track = np.stack([image[by_point] + 1, within[by_point]], axis=1).astype("<i4")
    with (folder / "points3D.bin").open("wb") as file:
        file.write(struct.pack("<Q", len(points)))
        for index, (xyz, rgb) in enumerate(zip(points.tolist(), colors.tolist())):
            mine = slice(bounds[index], bounds[index + 1])
            file.write(struct.pack("<Q3d3Bd", index + 1, *xyz, *rgb, 0.0))
            file.write(struct.pack("<Q", len(track[mine])) + track[mine].tobytes())


def _write_cameras(path: Path, cameras: Sequence[Camera]) -> None:
    model_ids = {name: id for id, (name, _) in enumerate(CAMERA_MODELS)}
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(cameras)))
        for camera in cameras:
            file.write(
                struct.pack(
                    f"<iiQQ{len(camera.params)}d",
                    camera.id,
                    model_ids[camera.model],
                    camera.width,
                    camera.height,
                    *camera.params,
                )
            )


def _quaternion(rotation: FloatArray) -> FloatArray:
    """(4,) w, x, y, z with w >= 0 of a rotation matrix.

    The largest eigenvector of the symmetric matrix that Bar-Itzhack (2000) builds from the
    rotation: no case distinctions, accurate near every angle.
    """
    r = rotation
    matrix = np.array(
        [
            [r[0, 0] - r[1, 1] - r[2, 2], r[1, 0] + r[0, 1], r[2, 0] + r[0, 2], r[2, 1] - r[1, 2]],
            [r[1, 0] + r[0, 1], r[1, 1] - r[0, 0] - r[2, 2], r[2, 1] + r[1, 2], r[0, 2] - r[2, 0]],
            [r[2, 0] + r[0, 2], r[2, 1] + r[1, 2], r[2, 2] - r[0, 0] - r[1, 1], r[1, 0] - r[0, 1]],
            [r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1], np.trace(r)],
        ]
    )
    x, y, z, w = np.linalg.eigh(matrix)[1][:, -1]
    quaternion = np.array([w, x, y, z])
    return quaternion if w >= 0 else -quaternion
