# SPDX-License-Identifier: Apache-2.0
"""From a camera with lens distortion to a pinhole camera: which one, and the pixels it sees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gs_train.data.colmap_records import Camera, FloatArray
from gs_train.data.lenses import (
    DISTORTED_MODELS,
    bends,
    coefficients,
    distort_all,
    enlargement,
    reach,
    resample,
)
from gs_train.errors import InputError

PINHOLE_MODELS = frozenset({"SIMPLE_PINHOLE", "PINHOLE"})

MOST_OFF_AXIS = math.radians(60)
"""Nothing further off the optical axis, sideways or up and down, enters an undistorted image.

A pinhole image stretches by 1 / cos^2: at 60 degrees a fisheye's pixel covers four and more."""

_LIMIT = math.tan(MOST_OFF_AXIS)
_N_DIRECTIONS = 1024


@dataclass(frozen=True)
class Pinhole:
    """An ideal camera.

    Attributes:
        K: (3, 3) float64, pixels; the centre of the first pixel is (0.5, 0.5).
        width, height: pixels.
    """

    K: FloatArray
    width: int
    height: int

    @staticmethod
    def of(camera: Camera, max_side: int | None) -> Pinhole:
        """What a camera without distortion becomes when its longest side is at most ``max_side``.

        Both sides are rounded to whole pixels and the intrinsics scaled by the two exact ratios,
        which then differ a little.
        """
        longest = max(camera.width, camera.height)
        if max_side is None or longest <= max_side:
            return Pinhole(camera.K, camera.width, camera.height)
        width = max(1, round(camera.width * max_side / longest))
        height = max(1, round(camera.height * max_side / longest))
        scale = np.diag([width / camera.width, height / camera.height, 1.0])
        return Pinhole(scale @ camera.K, width, height)


def is_distorted(camera: Camera) -> bool:
    """Whether the camera's images need undistortion before a pinhole renderer can match them.

    Raises:
        InputError: the model is one that is not supported; the message names it.
    """
    if camera.model in PINHOLE_MODELS:
        return False
    if camera.model not in DISTORTED_MODELS:
        supported = ", ".join(sorted(PINHOLE_MODELS | DISTORTED_MODELS))
        raise InputError(
            f"model of camera {camera.id} must be one of {supported}, got {camera.model}; "
            "cut each panorama into pinhole images and reconstruct from these"
        )
    return bends(camera)


def distort(camera: Camera, points: FloatArray) -> FloatArray:
    """Pixels at which a camera sees directions.

    Args:
        camera: of a model in `DISTORTED_MODELS`.
        points: (N, 2) float64, x / z and y / z in the camera's frame.

    Returns:
        (N, 2) float64 pixels; the centre of the first pixel is (0.5, 0.5).
    """
    pixels: FloatArray = distort_all(
        np.ascontiguousarray(points, dtype=np.float64), *coefficients(camera)
    )
    return pixels


def undistorted_pinhole(camera: Camera, max_side: int | None = None) -> Pinhole:
    """The pinhole camera that a camera's images are undistorted to.

    The rule: of the directions that the image sees, take the rectangle bounded by the innermost
    point of each of its four curved borders (OpenCV's alpha = 0: no black shows), cut where the
    formulas fold back and at `MOST_OFF_AXIS`. Keep the focal lengths, so that the centre is
    neither enlarged nor reduced, unless that makes the longest side longer than the original's
    or ``max_side``; then scale down to it. Both sides are rounded to whole pixels and the focal
    lengths adjusted by the rounding, so that the image covers the rectangle exactly.

    Args:
        camera: of a model in `DISTORTED_MODELS`.
        max_side: pixels; None for no further bound than the original's longest side.

    Raises:
        InputError: there is no such rectangle around the optical axis.

    Cost: 5 to 30 ms, one thread, GIL released.
    """
    with np.errstate(all="ignore"):  # a lens that sees nothing gives NaN, which is refused
        x0, y0, x1, y1 = _inner_rectangle(camera)
    fx, fy = np.diag(camera.K)[:2] * enlargement(camera)
    longest = max(camera.width, camera.height)
    bound = longest if max_side is None else min(longest, max_side)
    scale = min(1.0, bound / max((x1 - x0) * fx, (y1 - y0) * fy))
    width = max(1, round((x1 - x0) * fx * scale))
    height = max(1, round((y1 - y0) * fy * scale))
    fx, fy = width / (x1 - x0), height / (y1 - y0)
    return Pinhole(np.array([[fx, 0, -x0 * fx], [0, fy, -y0 * fy], [0, 0, 1]]), width, height)


def undistort(pixels: NDArray[Any], camera: Camera, pinhole: Pinhole) -> NDArray[Any]:
    """Resample an image from a camera with distortion to a pinhole camera, in one pass.

    Each output pixel is the mean of n x n bilinear samples spread evenly over it, with n the
    number of source pixels that it spans where the mapping shrinks most: reducing the size and
    undistorting are one antialiased step. Samples in the outermost half pixel repeat the border.

    Args:
        pixels: (height, width, 3) uint8 or uint16, contiguous, of the camera's size.
        camera: of a model in `DISTORTED_MODELS`.
        pinhole: what `undistorted_pinhole` returned.

    Returns:
        (pinhole.height, pinhole.width, 3) of the same dtype.

    Cost: about 30 ns per sample, one thread, GIL released. No memory besides the result.
    """
    result = np.empty((pinhole.height, pinhole.width, 3), dtype=pixels.dtype)
    n = max(1, math.ceil(_most_shrinking(camera, pinhole) - 0.25))  # bilinear spans the quarter
    resample(np.ascontiguousarray(pixels), result, n, pinhole.K, *coefficients(camera))
    return result


def _inner_rectangle(camera: Camera) -> tuple[float, float, float, float]:
    """x0, y0, x1, y1 (x / z and y / z) of the rectangle of `undistorted_pinhole`."""
    angles = (np.arange(_N_DIRECTIONS) + 0.5) * (2 * np.pi / _N_DIRECTIONS)
    rays = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    border = rays * _reach(camera, rays)[:, None]
    u, v = distort(camera, border * (1 + 1e-9)).T
    at_limit = np.abs(border) >= _LIMIT * (1 - 1e-9)
    x0 = -_innermost(-border[:, 0], (u < 0) | (at_limit[:, 0] & (border[:, 0] < 0)))
    y0 = -_innermost(-border[:, 1], (v < 0) | (at_limit[:, 1] & (border[:, 1] < 0)))
    x1 = _innermost(border[:, 0], (u > camera.width) | (at_limit[:, 0] & (border[:, 0] > 0)))
    y1 = _innermost(border[:, 1], (v > camera.height) | (at_limit[:, 1] & (border[:, 1] > 0)))

    # The four sides do not exclude corners beyond a fold, and rays may miss the innermost points.
    xs, ys = np.linspace(x0, x1, _N_DIRECTIONS // 4), np.linspace(y0, y1, _N_DIRECTIONS // 4)
    frame = np.concatenate(
        [
            np.stack(np.broadcast_arrays(x, y), axis=1)
            for x, y in ((xs, y0), (xs, y1), (x0, ys), (x1, ys))
        ]
    )
    distance = np.linalg.norm(frame, axis=1)
    shrink = min(1.0, float((_reach(camera, frame / distance[:, None]) / distance).min()))
    if not shrink * min((x1 - x0) * camera.K[0, 0], (y1 - y0) * camera.K[1, 1]) >= 1:
        raise _unusable(camera)
    return x0 * shrink, y0 * shrink, x1 * shrink, y1 * shrink


def _reach(camera: Camera, rays: FloatArray) -> FloatArray:
    """How far (N,) the camera sees along unit rays (N, 2), at most to `MOST_OFF_AXIS`."""
    result: FloatArray = reach(rays, _LIMIT, camera.width, camera.height, *coefficients(camera))
    if np.isnan(result).any():
        raise _unusable(camera)
    return result


def _innermost(distances: FloatArray, on_side: NDArray[np.bool_]) -> float:
    """The least distance of the border points on one side; the furthest of all if it has none."""
    return float(distances[on_side].min() if on_side.any() else distances.max())


def _most_shrinking(camera: Camera, pinhole: Pinhole) -> float:
    """Source pixels per output pixel where that is most, over a grid of output pixels."""
    columns, rows = np.meshgrid(
        np.linspace(0.5, pinhole.width - 0.5, 33), np.linspace(0.5, pinhole.height - 0.5, 33)
    )
    centres = np.stack([columns.ravel(), rows.ravel()], axis=1)
    focal, center = np.diag(pinhole.K)[:2], pinhole.K[:2, 2]

    def seen(offset: tuple[float, float]) -> FloatArray:
        return distort(camera, (centres + np.array(offset) - center) / focal)

    across, down = seen((0.5, 0)) - seen((-0.5, 0)), seen((0, 0.5)) - seen((0, -0.5))
    return max(float(np.linalg.norm(span, axis=1).max()) for span in (across, down))


def _unusable(camera: Camera) -> InputError:
    return InputError(
        f"camera {camera.id} ({camera.model}) must see a rectangle around its optical axis, got "
        f"none with the distortion {camera.distortion} and the principal point "
        f"({camera.K[0, 2]:g}, {camera.K[1, 2]:g}); calibrate again"
    )
