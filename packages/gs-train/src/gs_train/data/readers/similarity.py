# SPDX-License-Identifier: Apache-2.0
"""Turned, scaled and shifted worlds, and cameras that look along another axis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gs_train.data.colmap_records import FloatArray

MOST_SKEW = 5e-3
"""Between the largest and the smallest singular value of a scaled rotation, as a share of their
mean: three decimals leave 1e-3."""

LEAST_SCALE, MOST_SCALE = 1e-9, 1e9
_FROM_OPENGL = np.diag([1.0, -1.0, -1.0])  # x right, y up, z back: to y down, z forward


@dataclass(frozen=True)
class Similarity:
    """``moved = scale * (rotation @ x) + shift``.

    Attributes:
        rotation: (3, 3) float64, orthonormal, not mirrored.
        scale: positive.
        shift: (3,) float64.
    """

    rotation: FloatArray
    scale: float
    shift: FloatArray

    @classmethod
    def of(cls, matrix: FloatArray) -> Similarity | None:
        """The similarity of a (3, 4) matrix; None where the matrix mirrors or skews."""
        u, values, vt = np.linalg.svd(matrix[:, :3])
        scale = float(values.mean())
        is_even = values[0] - values[2] <= MOST_SKEW * scale
        rotation = u @ vt
        if not (LEAST_SCALE <= scale <= MOST_SCALE and is_even and np.linalg.det(rotation) > 0):
            return None
        return cls(rotation, scale, matrix[:, 3])

    def scaled(self, by: float) -> Similarity:
        """This one, and then everything scaled around the origin."""
        return Similarity(self.rotation, self.scale * by, self.shift * by)

    @property
    def is_identity(self) -> bool:
        return (
            self.scale == 1.0
            and not self.shift.any()
            and bool(np.allclose(self.rotation, np.eye(3), rtol=0, atol=1e-12))
        )

    def undone(self, points: FloatArray) -> FloatArray:
        """(P, 3) points where they were before."""
        before: FloatArray = (points - self.shift) / self.scale @ self.rotation
        return before


def world_to_camera(opengl: Similarity, moved: Similarity | None) -> FloatArray:
    """(4, 4) float64 pose with x right, y down, z forward.

    Args:
        opengl: camera to world, with x right, y up, z back; a scale of the camera's own axes has no
            meaning.
        moved: what was done to the world before, to be undone; None: nothing.
    """
    axes, centre = opengl.rotation @ _FROM_OPENGL, opengl.shift
    if moved is not None:
        axes, centre = moved.rotation.T @ axes, moved.undone(centre)
    pose = np.eye(4)
    pose[:3, :3] = axes.T
    pose[:3, 3] = -axes.T @ centre
    return pose
