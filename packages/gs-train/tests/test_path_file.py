# SPDX-License-Identifier: Apache-2.0
"""Camera paths in files, and the paths through their cameras."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from gs_train.data.frame import camera_centres
from gs_train.errors import InputError
from gs_train.scene.camera_paths import PathCamera, keyed_path, look_at
from gs_train.scene.path_file import camera_of, load_path, save_path

UP = np.array([0.0, 0.0, 1.0])


def keys(n: int = 5, width: int = 640, height: int = 360) -> list[PathCamera]:
    """Cameras on a bend, each with a narrower field of view."""
    at = np.linspace(0, 2, n)
    return [
        camera_of(
            f"{k}",
            look_at(np.array([np.cos(t), 3 * np.sin(t), 1 + t]), np.zeros(3), UP),
            np.radians(70 - 10 * t),
            width,
            height,
        )
        for k, t in enumerate(at)
    ]


def test_a_path_is_read_as_it_was_saved(tmp_path: Path) -> None:
    far = [
        PathCamera(k.name, k.world_to_camera @ shifted(), k.K, k.width, k.height) for k in keys()
    ]
    save_path(tmp_path / "path.json", far)
    read = load_path(tmp_path / "path.json")
    assert len(read) == 5
    for got, expected in zip(read, far):
        assert (got.width, got.height) == (640, 360)
        np.testing.assert_allclose(got.K, expected.K, rtol=1e-12)
        ours, theirs = camera_centres(np.stack([got.world_to_camera, expected.world_to_camera]))
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def shifted() -> np.ndarray:
    """From a frame with coordinates of a map."""
    pose = np.eye(4)
    pose[:3, 3] = (-500_000.0, -5_000_000.0, -100.0)
    return pose


def test_a_keyed_path_passes_its_cameras_in_order() -> None:
    cameras = keys()
    path = keyed_path([cameras[3], cameras[0], cameras[1], cameras[1]], 301)
    assert len(path) == 301
    centres = camera_centres(np.stack([camera.world_to_camera for camera in path]))
    places = camera_centres(np.stack([camera.world_to_camera for camera in cameras]))
    apart = np.linalg.norm(centres[:, None] - places, axis=2)
    step = np.linalg.norm(np.diff(centres, axis=0), axis=1).max()
    assert apart[:, [3, 0, 1]].min(0).max() <= step
    nearest = [int(apart[:, k].argmin()) for k in (3, 0, 1)]
    assert nearest == sorted(nearest)
    assert (nearest[0], nearest[2]) == (0, 300)
    for end, key in ((path[0], cameras[3]), (path[-1], cameras[1])):
        np.testing.assert_allclose(end.world_to_camera, key.world_to_camera, atol=1e-9)
        np.testing.assert_allclose(end.K, key.K)
    for camera in path:
        rotation = camera.world_to_camera[:3, :3]
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-9)
        assert min(k.K[0, 0] for k in cameras) <= camera.K[0, 0] <= cameras[3].K[0, 0]


def test_two_cameras_are_a_straight_way_and_one_is_a_still() -> None:
    first, second, *_ = keys()
    path = keyed_path([first, second], 3)
    centres = camera_centres(np.stack([camera.world_to_camera for camera in path]))
    np.testing.assert_allclose(centres[1], (centres[0] + centres[2]) / 2, atol=1e-9)
    still = keyed_path([first], 2)
    for camera in still:
        np.testing.assert_array_equal(camera.world_to_camera, first.world_to_camera)


def test_keys_of_several_sizes_are_refused(tmp_path: Path) -> None:
    mixed = [keys()[0], keys(width=64)[1]]
    with pytest.raises(ValueError, match="keys must have one size"):
        keyed_path(mixed, 3)
    with pytest.raises(ValueError, match="all of one size"):
        save_path(tmp_path / "path.json", mixed)
    with pytest.raises(ValueError, match="at least one"):
        save_path(tmp_path / "path.json", [])


def one_key(**changes: Any) -> dict[str, Any]:
    pose = np.eye(4)[:3].tolist()
    return {"camera_to_world": pose, "fov_y": 50, **changes}


def spoiled(**changes: Any) -> dict[str, Any]:
    plain = {"format": "gs-train camera path", "version": 1, "width": 640, "height": 360}
    return {**plain, "keys": [one_key()], **changes}


def tilted() -> list[list[float]]:
    turn = Rotation.from_euler("x", 30, degrees=True).as_matrix() * 1.01
    return np.concatenate((turn, np.zeros((3, 1))), 1).tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "camera path in JSON: Expecting property name"),
        (b"[]", "it must say"),
        (spoiled(version=2), "it must say"),
        (spoiled(width=0), "width and height must be from 1 to 32768, got 0"),
        (spoiled(height=1e9), "width and height must be from 1 to 32768, got 1000000000.0"),
        (spoiled(keys=[]), "it has no keys"),
        (spoiled(keys=7), "not iterable"),
        (spoiled(keys=[one_key(), {"fov_y": 50}]), "key 1: it lacks 'camera_to_world'"),
        (spoiled(keys=[one_key(camera_to_world=[1, 2])]), "key 0: .* three rows of four numbers"),
        (spoiled(keys=[one_key(camera_to_world=[["a"] * 4] * 3)]), "key 0: could not convert"),
        (spoiled(keys=[one_key(camera_to_world=tilted())]), "key 0: .* must hold a rotation"),
        (spoiled(keys=[one_key(fov_y=0)]), "fov_y must be from 0.1 to 170 degrees, got 0"),
        (spoiled(keys=[one_key(fov_y=True)]), "fov_y must be from 0.1 to 170 degrees, got True"),
    ],
)
def test_a_file_that_is_no_path_is_refused_in_one_line(
    content: Any, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "path.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(InputError, match=message) as caught:
        load_path(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be a camera path: No such file"):
        load_path(tmp_path / "none.json")
    with pytest.raises(InputError, match="must be a camera path: Is a directory"):
        load_path(tmp_path)


def test_the_example_of_the_page_is_a_path(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "viewer.md").read_text()
    example = page.split("```json\n")[1].split("```")[0]
    (tmp_path / "path.json").write_text(example)
    assert len(load_path(tmp_path / "path.json")) == 2
