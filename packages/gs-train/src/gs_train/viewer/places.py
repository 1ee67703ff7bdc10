# SPDX-License-Identifier: Apache-2.0
"""Cameras of a page in the frame of the rows, and in the capture's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.spatial.transform import Rotation

from gs_train.data.frame import Frame
from gs_train.renderers import View
from gs_train.scene.camera_paths import PathCamera, look_at
from gs_train.scene.path_file import FOV_DEGREES, camera_of
from gs_train.viewer.opened import OpenedScene


@dataclass(frozen=True, eq=False)
class Place:
    """A camera of a page.

    Attributes:
        camera_to_world: (4, 4) in the frame of the rows; x right, y down, z forward.
        fov_y: vertical field of view, radians.
        width, height: of the page's picture.
    """

    camera_to_world: np.ndarray
    fov_y: float
    width: int
    height: int

    def size(self, longest: int) -> tuple[int, int]:
        """Width and height with so many pixels on the longer side at most, both even, as videos
        want them."""
        scale = min(1.0, longest / max(self.width, self.height))
        width, height = (max(2, 2 * round(side * scale / 2)) for side in (self.width, self.height))
        return width, height

    def view(self, longest: int) -> View:
        """The view to draw."""
        width, height = self.size(longest)
        pose = np.linalg.inv(self.camera_to_world)
        K = camera_of("", pose, self.fov_y, width, height).K
        return View(
            "page", torch.from_numpy(pose).float(), torch.from_numpy(K).float(), width, height
        )

    def key(self, frame: Frame) -> PathCamera:
        """The camera in the frame of the capture."""
        pose = self.camera_to_world.copy()
        pose[:3, 3] = pose[:3, 3] / frame.scale - np.asarray(frame.shift)
        return camera_of("", np.linalg.inv(pose), self.fov_y, self.width, self.height)


def first_place(scene: OpenedScene) -> Place:
    """Where a page looks from at first: the first camera of the run, or from aside."""
    if scene.cameras:
        return place_of(scene.cameras[0], scene.frame)
    side = np.cross(scene.up, np.eye(3)[np.abs(scene.up).argmin()])
    side /= np.linalg.norm(side)
    pose = look_at(scene.focus + 3 * side + 0.7 * scene.up, scene.focus, scene.up)
    return Place(np.linalg.inv(pose), np.radians(60), 16, 9)


def place_of(camera: PathCamera, frame: Frame) -> Place:
    """A camera of the capture."""
    pose = np.linalg.inv(frame.pose_in(np.asarray(camera.world_to_camera, float)))
    fov_y = 2 * np.arctan(camera.height / (2 * float(camera.K[1, 1])))
    return Place(pose, float(fov_y), camera.width, camera.height)


def place_of_page(camera: Any) -> Place | None:
    """The camera of a page, as viser tells it; None where it is none to draw from.

    A page sends what it wants: without a size before it is shown, and without numbers perhaps.
    """
    width, height, fov_y = int(camera.image_width), int(camera.image_height), float(camera.fov)
    values = (fov_y, *camera.wxyz, *camera.position)
    if not (width > 0 and height > 0 and np.isfinite(values).all() and any(camera.wxyz)):
        return None
    pose = np.eye(4)
    pose[:3, :3] = rotation_of(camera.wxyz)
    pose[:3, 3] = camera.position
    least, most = np.radians(FOV_DEGREES)
    return Place(pose, float(min(max(fov_y, least), most)), width, height)


def rotation_of(wxyz: Any) -> np.ndarray:
    """(3, 3) of a quaternion."""
    return np.asarray(Rotation.from_quat(np.roll(wxyz, -1)).as_matrix())


def nearest_camera(scene: OpenedScene, place: Place) -> int:
    """The index of the run's camera that is nearest to a place and looks most alike."""
    poses = np.stack([place_of(camera, scene.frame).camera_to_world for camera in scene.cameras])
    apart = np.linalg.norm(poses[:, :3, 3] - place.camera_to_world[:3, 3], axis=1)
    turned = np.linalg.norm(poses[:, :3, 2] - place.camera_to_world[:3, 2], axis=1)
    return int((apart + turned).argmin())
