# SPDX-License-Identifier: Apache-2.0
"""Captures in other coordinates: each pose and point scaled and moved, photographs as they are."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gs_train.data.colmap import largest, models_in, read_model, read_points
from gs_train.data.colmap_writer import NamedPose, Observations, write_model

UTM = (465000.0, 5247000.0, 430.0)


def moved_pose(pose: np.ndarray, offset: Sequence[float], scale: float = 1.0) -> np.ndarray:
    """(4, 4) pose of a camera in a world whose coordinates became ``scale * x + offset``."""
    moved = pose.copy()
    moved[:3, 3] = scale * pose[:3, 3] - pose[:3, :3] @ np.asarray(offset)
    return moved


def write_moved(capture: Path, to: Path, offset: Sequence[float], scale: float = 1.0) -> Path:
    """A copy of a capture whose world was scaled, then moved."""
    model = read_model(largest(models_in(capture)))
    points, colors = read_points(model.folder)
    none = np.zeros(0, np.int64)
    write_model(
        to / "sparse" / "0",
        list(model.cameras.values()),
        [
            NamedPose(i.name, i.camera_id, moved_pose(i.world_to_camera, offset, scale))
            for i in model.images
        ],
        points=scale * points + np.asarray(offset),
        colors=colors,
        observations=Observations(none, none, np.zeros((0, 2))),
    )
    (to / "images").symlink_to(capture / "images")
    return to
