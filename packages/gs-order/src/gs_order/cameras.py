# SPDX-License-Identifier: Apache-2.0
"""Where cameras are and where they look, from the forms that callers have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gs_order.arrays import Array, to_numpy


def centres_and_directions(
    cameras: Array, name: str = "cameras"
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """Camera centres and unit viewing directions in the world.

    Args:
        cameras: (V, 4, 4) world-to-camera matrices (gsplat's viewmats; x right, y down, z forward),
            or (V, 3) centres alone. numpy, torch or nested sequences.
        name: of the argument, for the message.

    Returns:
        centres (V, 3) float64; directions (V, 3) float64, or None for centres alone.

    Raises:
        ValueError: another shape, no camera, or numbers that are not finite.
    """
    c = to_numpy(cameras, name).astype(np.float64)
    if c.shape[1:] not in ((4, 4), (3,)) or len(c) == 0:
        raise ValueError(
            f"{name} must be (V, 4, 4) world-to-camera matrices or (V, 3) centres with V >= 1, "
            f"got shape {c.shape}"
        )
    if not np.isfinite(c).all():
        bad = int(np.flatnonzero(~np.isfinite(c).reshape(len(c), -1).all(1))[0])
        raise ValueError(f"{name} must be finite, got NaN or inf in camera {bad}")
    if c.ndim == 2:
        return c, None
    rotation, translation = c[:, :3, :3], c[:, :3, 3]
    # One product at a time: a matrix product may round in another way on another machine.
    centres = -_sum_of(rotation[:, k] * translation[:, k, None] for k in range(3))
    forward = rotation[:, 2]
    return centres, forward / np.maximum(lengths(forward), 1e-12)[:, None]


def features(cameras: Array, direction_weight: float) -> np.ndarray[Any, Any]:
    """Cameras as points in which near ones see the same things.

    Args:
        cameras: as for :func:`centres_and_directions`.
        direction_weight: distance between two opposite viewing directions, in units of twice the
            median distance of the cameras from the middle of all; 0 counts places alone.

    Returns:
        (V, 6) float64: places in units of that median, then directions; (V, 3) without directions.
        The same bits on any machine, and finite.
    """
    centres, directions = centres_and_directions(cameras)
    low, high = centres.min(axis=0), centres.max(axis=0)
    offsets = centres - (low / 2 + high / 2)
    widest = float(np.abs(offsets).max())
    if widest > 0:
        offsets /= widest  # so that no square is out of range
    offsets -= [_middle(offsets[:, axis]) for axis in range(3)]
    distances = lengths(offsets)
    # The largest where more than half of the cameras are in one place.
    unit = _middle(distances) or float(distances.max())
    places = offsets / unit if unit > 0 else offsets
    if directions is None or direction_weight == 0:
        return places
    return np.concatenate([places, direction_weight * directions], axis=1)


def lengths(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(V,) lengths of (V, 3) vectors, the same bits on any machine."""
    return np.sqrt(_sum_of(vectors[:, axis] * vectors[:, axis] for axis in range(3)))


def _sum_of(terms: Iterable[np.ndarray[Any, Any]]) -> Any:
    """Of three arrays, the first two first."""
    first, second, third = terms
    return first + second + third


def _middle(values: np.ndarray[Any, Any]) -> float:
    """The median; the larger of the two in the middle of an even number."""
    return float(np.sort(values)[len(values) // 2])
