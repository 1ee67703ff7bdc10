# SPDX-License-Identifier: Apache-2.0
"""Where cameras are and where they look, from the forms that callers have."""

from __future__ import annotations

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
    centres = -np.einsum("vij,vi->vj", rotation, translation)
    forward = rotation[:, 2]
    return centres, forward / np.maximum(np.linalg.norm(forward, axis=1, keepdims=True), 1e-12)
