# SPDX-License-Identifier: Apache-2.0
"""The frame that a scene is looked at in: what is up there, and what there is to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from gs_train.data.frame import Frame, camera_centres
from gs_train.scene.camera_paths import PathCamera

COLMAP_UP = np.array([0.0, -1.0, 0.0])
"""Up in most scenes without cameras."""


def into(frame: Frame) -> Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]:
    """Rows of a file in the frame; harmonics know directions alone and stay."""

    def moved(rows: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        shift = torch.tensor(frame.shift, dtype=torch.float64)
        means = ((rows["means"].double() + shift) * frame.scale).float()
        return {**rows, "means": means, "scales": rows["scales"] + float(np.log(frame.scale))}

    return moved


def frame_of(means: np.ndarray) -> tuple[Frame, np.ndarray]:
    """A frame in which half of the rows lie within 1 of the origin, the focus."""
    means = means[np.isfinite(means).all(axis=1)]
    if not len(means):
        return Frame((0.0, 0.0, 0.0), 1.0, 1.0), np.zeros(3)
    middle = np.median(means, axis=0)
    size = float(np.median(np.linalg.norm(means - middle, axis=1)))
    x, y, z = (float(-value) for value in middle)
    return Frame((x, y, z), 1 / size if size > 0 else 1.0, 1.0), np.zeros(3)


def up_and_focus(cameras: tuple[PathCamera, ...], frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    """Up, the mean of the cameras' own where they agree at all; and the point ahead of the mean
    camera, as far away as the frame's unit says."""
    poses = np.stack([frame.pose_in(camera.world_to_camera) for camera in cameras])
    mean = -poses[:, 1, :3].mean(0)
    length = float(np.linalg.norm(mean))
    up = mean / length if length > 1e-3 else COLMAP_UP
    return up, np.median(camera_centres(poses) + poses[:, 2, :3], axis=0)
