# SPDX-License-Identifier: Apache-2.0
"""The camera of a frame of a transforms file, in COLMAP's terms."""

from __future__ import annotations

import math
from collections import ChainMap
from typing import NamedTuple

from gs_train.data.ranges import LARGEST_SIDE
from gs_train.data.readers.transforms_values import Level, number
from gs_train.errors import InputError

PERSPECTIVE = frozenset({"PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV"})
FISHEYE = frozenset({"OPENCV_FISHEYE"})
RATIONAL = frozenset({"FULL_OPENCV"})
_SUPPORTED = ", ".join(sorted(PERSPECTIVE | FISHEYE | RATIONAL))

_COEFFICIENTS = tuple(f"ftheta_p{i}" for i in range(5))
_SWITCHES = ("latlong", "equirectangular", "orthographic")
"""Lenses of instant-ngp that have keys of their own where others have ``camera_model``."""


class Lens(NamedTuple):
    """A camera without an id.

    Attributes:
        model, width, height, params: as :class:`gs_train.data.colmap_records.Camera` has them.
    """

    model: str
    width: int
    height: int
    params: tuple[float, ...]


def size_of(where: str, frame: Level, top: Level) -> tuple[int, int] | None:
    """Width and height that the frame or the file gives; None where they give none.

    Raises:
        InputError: one is no whole number of pixels.
    """
    level = ChainMap(dict(frame), dict(top))
    sides = [number(where, level, key) for key in ("w", "h")]
    for key, side in zip("wh", sides):
        if side is not None and not (side == int(side) and 0 < side <= LARGEST_SIDE):
            raise InputError(
                f"{where}: {key} must be 1 to {LARGEST_SIDE} whole pixels, got {side:g}"
            )
    width, height = sides
    return None if width is None or height is None else (int(width), int(height))


def lens_of(where: str, frame: Level, top: Level, size: tuple[int, int]) -> Lens:
    """The camera of a frame: what the frame says goes before what the file says.

    Raises:
        InputError: there is no focal length, a value is no number, or the lens is of a kind that is
            not supported.
    """
    level = ChainMap(dict(frame), dict(top))
    _check_kind(where, level)
    fx, fy = _focal_lengths(where, frame, top, size)
    cx, cy = number(where, level, "cx"), number(where, level, "cy")
    centre = size[0] / 2 if cx is None else cx, size[1] / 2 if cy is None else cy
    model, distortion = _distortion(where, level)
    return Lens(model, *size, (fx, fy, *centre, *distortion))


def _check_kind(where: str, level: Level) -> None:
    """Refuse lenses of instant-ngp that would be read as pinholes.

    Raises:
        InputError: the camera has such a lens.
    """
    given = [key for key in _COEFFICIENTS if level.get(key) is not None]  # any may be 0
    given += [key for key in _SWITCHES if level.get(key)]
    if given:
        raise InputError(
            f"{where}: lens must be that of a camera_model, one of {_SUPPORTED}, got {given[0]}; "
            "resample the photographs to a pinhole camera first"
        )


def _focal_lengths(
    where: str, frame: Level, top: Level, size: tuple[int, int]
) -> tuple[float, float]:
    """Pixels; from the frame alone where it has any, else from the file."""
    for level in (frame, top):
        fx, fy = number(where, level, "fl_x"), number(where, level, "fl_y")
        if fx is None:
            fx = _from_angles(where, level, "x", size[0])
            fy = _from_angles(where, level, "y", size[1]) if fy is None else fy
        first = fy if fx is None else fx
        if first is not None:
            return first, first if fy is None else fy
    raise InputError(
        f"{where} must have a focal length, fl_x in pixels, camera_angle_x in radians or x_fov in "
        "degrees, got none"
    )


def _from_angles(where: str, level: Level, axis: str, side: int) -> float | None:
    """Pixels, from the angle that a side is seen under; None where the level has none."""
    for key, half_turn, unit in (
        (f"camera_angle_{axis}", math.pi, "pi radians"),
        (f"{axis}_fov", 180.0, "180 degrees"),
    ):
        angle = number(where, level, key)
        if angle is None:
            continue
        if not 0 < angle < half_turn:
            raise InputError(f"{where}: {key} must be above 0 and below {unit}, got {angle:g}")
        return side / 2 / math.tan(angle / half_turn * (math.pi / 2))
    return None


def _distortion(where: str, level: Level) -> tuple[str, tuple[float, ...]]:
    """The model's name and the parameters after the principal point."""
    plain = "OPENCV_FISHEYE" if level.get("is_fisheye") else "OPENCV"
    named = level.get("camera_model") or plain
    kind = named if isinstance(named, str) else None
    names = ("k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2")
    k1, k2, k3, k4, k5, k6, p1, p2 = (number(where, level, name) or 0.0 for name in names)
    if kind in FISHEYE:
        return "OPENCV_FISHEYE", (k1, k2, k3, k4)
    if kind in RATIONAL:
        return "FULL_OPENCV", (k1, k2, p1, p2, k3, k4, k5, k6)
    if kind not in PERSPECTIVE:
        raise InputError(
            f"{where}: camera_model must be one of {_SUPPORTED}, got {named!r:.80}; undistort the "
            "photographs to a pinhole camera first"
        )
    if k4:
        raise InputError(
            f"{where}: k4 of a camera that is no fisheye must be 0, got {k4:g}: no model that is "
            "undistorted here has an eighth power of the radius"
        )
    if k3:
        return "FULL_OPENCV", (k1, k2, p1, p2, k3, 0.0, 0.0, 0.0)
    if k1 or k2 or p1 or p2:
        return "OPENCV", (k1, k2, p1, p2)
    return "PINHOLE", ()
