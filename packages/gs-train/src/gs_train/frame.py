# SPDX-License-Identifier: Apache-2.0
"""The frame that a scene is trained in, and the way back to the capture's own.

Learning rates, the near plane and MCMC's noise assume a scene of about unit size around the
origin. A capture's frame is arbitrary (COLMAP) or huge (geodetic), so training happens in a
shifted and scaled copy. There is
no rotation: spherical harmonics would have to be rotated along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Frame:
    """``trained = (captured + shift) * scale``.

    Attributes:
        shift: (3,) in the capture's units.
        scale: training units per capture unit, positive.
        extent: radius of the cameras in training units, with 10 % to spare; scales the means'
            learning rate and densification's sizes.
    """

    shift: tuple[float, float, float]
    scale: float
    extent: float

    @classmethod
    def from_cameras(cls, world_to_camera: np.ndarray) -> Frame:
        """The frame in which the cameras' median distance from their common focus is 1.

        The focus is the median, over the cameras, of the point of the viewing ray that is nearest
        to the capture's origin, as gsplat's trainer has it.

        Args:
            world_to_camera: (V, 4, 4) float64.
        """
        rotation, translation = world_to_camera[:, :3, :3], world_to_camera[:, :3, 3]
        centres = -np.einsum("vji,vj->vi", rotation, translation)
        forward = rotation[:, 2]
        nearest = centres - (centres * forward).sum(1, keepdims=True) * forward
        shift = -np.median(nearest, axis=0)
        distance = float(np.median(np.linalg.norm(centres + shift, axis=1)))
        if distance <= 1e-9 * float(np.abs(centres).max() + 1.0):  # all in one place
            distance = 1.0
        trained = (centres + shift) / distance
        extent = float(np.linalg.norm(trained - trained.mean(0), axis=1).max()) * 1.1
        x, y, z = (float(v) for v in shift)
        return cls((x, y, z), 1.0 / distance, extent if extent > 0 else 1.1)

    def points_in(self, points: np.ndarray) -> np.ndarray:
        """(P, 3) points of the capture in the training frame, float64."""
        return (points + np.asarray(self.shift)) * self.scale

    def pose_in(self, world_to_camera: np.ndarray) -> np.ndarray:
        """(4, 4) pose of the capture in the training frame, float64."""
        pose = world_to_camera.copy()
        rotation = world_to_camera[:3, :3]
        pose[:3, 3] = (world_to_camera[:3, 3] - rotation @ np.asarray(self.shift)) * self.scale
        return pose

    def rows_out(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of the training frame in the capture's frame; other attributes are passed on."""
        out = dict(rows)
        shift = torch.tensor(self.shift, dtype=torch.float64, device=rows["means"].device)
        out["means"] = (rows["means"].double() / self.scale - shift).float()
        out["scales"] = rows["scales"] - float(np.log(self.scale))
        return out
