# SPDX-License-Identifier: Apache-2.0
"""The frame that a scene is trained in, and the way back to the capture's own.

Learning rates, the near plane and MCMC's noise assume a scene of about unit size around the
origin. A capture's frame is arbitrary (COLMAP) or huge (geodetic), so training happens in a
shifted and scaled copy. There is no rotation: spherical harmonics would have to be rotated along.
All of this module computes in float64: coordinates of a capture may be a million times its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

FrameChoice = Literal["auto", "capture", "local"]
"""Of exported rows; see :class:`gs_train.scene.export_frame.ExportFrame`."""

_ROUNDING = 64 * np.finfo(np.float64).eps
"""Camera centres that are no further apart than this share of their coordinates are one place."""


@dataclass(frozen=True)
class Frame:
    """``trained = (captured + shift) * scale``.

    Attributes:
        shift: (3,) in the capture's units.
        scale: training units per capture unit, positive.
        extent: radius of the cameras in training units, with 10 % to spare; scales densification's
            sizes.
        means_extent: scales the means' learning rate; None: as ``extent``.
    """

    shift: tuple[float, float, float]
    scale: float
    extent: float
    means_extent: float | None = None

    @classmethod
    def from_cameras(cls, world_to_camera: np.ndarray) -> Frame:
        """The frame in which the cameras' median distance from their common focus is 1.

        The focus is the median, over the cameras, of the point of the viewing ray that is nearest
        to the median camera centre. A capture whose origin or unit is another therefore gives the
        same scene, up to the rounding of its coordinates.

        Args:
            world_to_camera: (V, 4, 4) float64.
        """
        rotation, translation = world_to_camera[:, :3, :3], world_to_camera[:, :3, 3]
        centres = camera_centres(world_to_camera)
        middle = np.median(centres, axis=0)
        offsets, forward = centres - middle, rotation[:, 2]
        nearest = offsets - (offsets * forward).sum(1, keepdims=True) * forward
        focus = np.median(nearest, axis=0)
        distance = float(np.median(np.linalg.norm(offsets - focus, axis=1)))
        radius = float(np.linalg.norm(offsets - offsets.mean(0), axis=1).max())
        one_place = _ROUNDING * float(np.abs(translation).max())
        distance = distance if distance > one_place else 1.0
        radius = radius if radius > one_place else distance
        x, y, z = (float(v) for v in -(middle + focus))
        return cls((x, y, z), 1.0 / distance, 1.1 * radius / distance)

    def points_in(self, points: np.ndarray) -> np.ndarray:
        """(P, 3) points of the capture in the training frame, float64."""
        return (points + np.asarray(self.shift)) * self.scale

    def pose_in(self, world_to_camera: np.ndarray) -> np.ndarray:
        """(4, 4) pose of the capture in the training frame, float64."""
        pose = world_to_camera.copy()
        rotation = world_to_camera[:3, :3]
        pose[:3, 3] = (world_to_camera[:3, 3] - rotation @ np.asarray(self.shift)) * self.scale
        return pose

    def rows_out(
        self, rows: Mapping[str, Tensor], origin: Sequence[float] = (0.0, 0.0, 0.0)
    ) -> dict[str, Tensor]:
        """Rows of the training frame in the capture's units; other attributes are passed on.

        Args:
            origin: (3,) point of the capture that the result's coordinates are relative to.
        """
        out = dict(rows)
        back = torch.tensor(np.add(self.shift, origin), dtype=torch.float64)
        means = rows["means"]
        out["means"] = (means.double() / self.scale - back.to(means.device)).float()
        out["scales"] = rows["scales"] - float(np.log(self.scale))
        return out

    def rows_in(
        self, rows: Mapping[str, Tensor], shift: Sequence[float], scale: float
    ) -> dict[str, Tensor]:
        """Rows of elsewhere in the training frame; other attributes are passed on, and all where
        both frames are the same.

        Args:
            shift: (3,), with ``scale``: ``captured = elsewhere / scale - shift``.
            scale: above 0.
        """
        moved = dict(rows)
        if (*shift, scale) == (*self.shift, self.scale):
            return moved
        back = torch.tensor(np.subtract(self.shift, shift), dtype=torch.float64)
        means = rows["means"]
        there = means.double() / scale + back.to(means.device)
        moved["means"] = (there * self.scale).float()
        moved["scales"] = rows["scales"] + float(np.log(self.scale / scale))
        return moved


def camera_centres(world_to_camera: np.ndarray) -> np.ndarray:
    """(V, 3) float64 centres of cameras, from (V, 4, 4).

    The inverse is used, not the transpose: far from the origin a rotation that is off by 1e-7, as
    rotations kept in float32 are, would move the centre.
    """
    rotation, translation = world_to_camera[:, :3, :3], world_to_camera[:, :3, 3]
    return -np.linalg.solve(rotation, translation[:, :, None])[:, :, 0]
