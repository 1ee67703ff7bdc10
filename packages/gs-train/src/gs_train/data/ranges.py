# SPDX-License-Identifier: Apache-2.0
"""Which numbers of a capture mean something in float32, in the frame that is trained in.

Files hold float64, training float32: largest value 3.4e38, seven digits. Renderers square
coordinates and multiply the squares, so a coordinate's fourth power must be a number too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gs_train.data.frame import Frame, camera_centres
from gs_train.errors import InputError

LARGEST_SIDE = 1 << 20
"""Pixels; anything above is a corrupt file, not a photograph."""

LEAST_FOCAL, MOST_FOCAL = 1e-3, 1e4
"""Focal lengths, as multiples of the image's longest side: a field of view from 0.006 to 179.9
degrees. Beyond, one step of float32 at the cameras' distance is wider than a pixel."""

MOST_OFF_CENTRE = 1e4
"""The principal point is no further from the first pixel, in multiples of the longest side."""

MOST_DISTORTION = 1e6
"""Of a distortion parameter, either sign; lenses have hundreds at most."""

FARTHEST_COORDINATE = 1e18
"""Of a camera, in the capture's own units: viewers square it in float32."""

FARTHEST_CAMERA = 1e6
"""From the focus, in multiples of the cameras' median distance: beyond, float32's step at the
camera is a tenth of that distance and more."""

FARTHEST_POINT = 1e9
"""Any coordinate in the frame that is trained in: its fourth power still fits float32. Real
reconstructions have strays a million times as far away as the scene is wide; these stay."""

_QUATERNION_LENGTHS = 1e-12, 1e12


def require_intrinsics(
    what: str, K: NDArray[np.float64], distortion: Sequence[float], longest_side: int
) -> None:
    """Check the focal lengths, the principal point and the distortion of a camera.

    Args:
        what: the camera, for messages.
        K: (3, 3), pixels.
        distortion: parameters of its model.

    Raises:
        InputError: one is out of range.
    """
    least, most = LEAST_FOCAL * longest_side, MOST_FOCAL * longest_side
    for focal in (float(K[0, 0]), float(K[1, 1])):
        if not least <= focal <= most:
            raise InputError(
                f"{what} must have a focal length of {least:g} to {most:g} pixels, got {focal:g}"
            )
    reach = MOST_OFF_CENTRE * longest_side
    for centre in (float(K[0, 2]), float(K[1, 2])):
        if not abs(centre) <= reach:
            raise InputError(
                f"{what} must have its principal point within {reach:g} pixels, got {centre:g}"
            )
    for parameter in distortion:
        if not abs(parameter) <= MOST_DISTORTION:
            raise InputError(
                f"{what} must have distortion parameters within {MOST_DISTORTION:g}, "
                f"got {parameter:g}"
            )


def require_pose(what: str, pose: NDArray[np.float64]) -> None:
    """Check a quaternion's length and a translation's size.

    Args:
        what: the image, for messages.
        pose: (7,) w, x, y, z of the quaternion, then x, y, z.

    Raises:
        InputError: one is out of range.
    """
    largest = float(np.abs(pose[:4]).max())  # whose square would overflow before its check
    least, most = _QUATERNION_LENGTHS
    if not least <= largest <= most:
        raise InputError(
            f"{what} must have a quaternion of a length from {least:g} to {most:g}, "
            f"got {pose[:4].tolist()}"
        )
    if not np.abs(pose[4:]).max() <= FARTHEST_COORDINATE:
        raise InputError(
            f"{what} must have a translation of at most {FARTHEST_COORDINATE:g}, "
            f"got {pose[4:].tolist()}"
        )


def require_cameras(
    where: str, names: Sequence[str], world_to_camera: NDArray[np.float64]
) -> Frame:
    """The frame that cameras suggest, after a check that all of them are near enough for it.

    Args:
        where: file, for the message.
        names: of the images.
        world_to_camera: (V, 4, 4), V > 0.

    Raises:
        InputError: a camera stands further out than `FARTHEST_CAMERA`.
    """
    frame = Frame.from_cameras(world_to_camera)
    distances = np.linalg.norm(frame.points_in(camera_centres(world_to_camera)), axis=1)
    far = np.flatnonzero(~(distances <= FARTHEST_CAMERA))
    if len(far):
        raise InputError(
            f"{where}: cameras must stand within {FARTHEST_CAMERA:g} times their median distance "
            f"from the scene, got {len(far)} further out (first {names[far[0]]} at "
            f"{distances[far[0]]:g} times); remove them from the model"
        )
    return frame


def in_reach(points: NDArray[np.floating]) -> NDArray[np.bool_]:
    """(P,) which points, of the frame that is trained in, are finite and within `FARTHEST_POINT`.

    A point further out is no place in float32: a Gaussian as wide as its distance would make
    infinities of the rest. Readers leave such points out and say how many.
    """
    return np.asarray((np.abs(points) <= FARTHEST_POINT).all(axis=1))
