# SPDX-License-Identifier: Apache-2.0
"""Cameras and boxes as line segments of a page."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gs_train.data.frame import Frame
from gs_train.scene.camera_paths import Posed

FRUSTUM = 0.06
"""Depth of a pyramid, in training units, of which cameras are about 1 from what they look at."""


def frustum_lines(cameras: Sequence[Posed], frame: Frame, depth: float) -> NDArray[np.float32]:
    """(8 V, 2, 3) in the training frame: four edges of a pyramid for each camera, and its base.

    Args:
        cameras: in the capture's frame.
        depth: of a pyramid, in training units.
    """
    lines = []
    for camera in cameras:
        pose = np.linalg.inv(frame.pose_in(np.asarray(camera.world_to_camera, float)))
        x, y = (np.array((0, camera.width)), np.array((0, camera.height)))
        corners = np.array([(x[0], y[0]), (x[1], y[0]), (x[1], y[1]), (x[0], y[1])], float)
        rays = np.concatenate((corners, np.ones((4, 1))), 1) @ np.linalg.inv(camera.K).T
        points = rays * depth @ pose[:3, :3].T + pose[:3, 3]
        lines += [(pose[:3, 3], point) for point in points]
        lines += [(points[i], points[(i + 1) % 4]) for i in range(4)]
    return np.array(lines, np.float32).reshape(-1, 2, 3)


def box_lines(size: Sequence[float]) -> NDArray[np.float32]:
    """(12, 2, 3): the edges of a box around the origin."""
    corners = np.array(list(itertools.product((-0.5, 0.5), repeat=3))) * np.asarray(size)
    edges = [
        (a, b)
        for a, b in itertools.combinations(range(8), 2)
        if bin(a ^ b).count("1") == 1  # they differ along one axis
    ]
    return np.array([[corners[a], corners[b]] for a, b in edges], np.float32)


def draw_lines(
    client: Any, name: str, lines: NDArray[np.float32], color: tuple[int, int, int]
) -> None:
    """Show lines in a page in place of those of the same name; none remove them.

    Args:
        client: viser's handle of the browser's page.
        lines: (L, 2, 3).
    """
    if len(lines):
        client.scene.add_line_segments(name, lines, color, thickness=2.0, thickness_units="screen")
    else:
        client.scene.remove_by_name(name)
