# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from gs_train.scene.camera_paths import (
    MAX_KEYS,
    ellipse_path,
    interpolated_path,
    look_at,
    view_path,
)


@dataclass(frozen=True)
class View:
    name: str
    world_to_camera: np.ndarray
    K: np.ndarray
    width: int = 640
    height: int = 480


def view(pose, index=0, focal=500.0, **size):
    return View(f"{index:04d}.jpg", pose, np.diag([focal, focal, 1.0]), **size)


def center(pose):
    return -pose[:3, :3].T @ pose[:3, 3]


def centers(path):
    return np.stack([center(camera.world_to_camera) for camera in path])


def ring(n=24, radius=3.0, height=1.0, focus=(0.5, -0.2, 0.3), turn=2 * np.pi):
    """Cameras on a circle above and around a focus, z up."""
    focus = np.array(focus)
    views = []
    for i in range(n):
        angle = turn * i / n
        place = focus + np.array([radius * np.cos(angle), radius * np.sin(angle), height])
        views.append(view(look_at(place, focus, np.array([0.0, 0, 1])), i))
    return views


def aerial(n=5, flip=False):
    """A grid of cameras at height 10, looking straight down; every other row flown backwards."""
    views = []
    for row in range(n):
        for column in range(n):
            up = np.array([0.0, -1 if flip and row % 2 else 1, 0])
            place = np.array([2.0 * column, 2.0 * row, 10])
            views.append(view(look_at(place, place - [0, 0, 1], up), len(views)))
    return views


def assert_rigid(path):
    for camera in path:
        pose = camera.world_to_camera
        assert pose.shape == (4, 4)
        assert pose.dtype == np.float64
        assert np.isfinite(pose).all()
        np.testing.assert_allclose(pose[:3, :3] @ pose[:3, :3].T, np.eye(3), atol=1e-12)
        assert np.linalg.det(pose[:3, :3]) == pytest.approx(1)
        assert pose[3].tolist() == [0, 0, 0, 1]


def assert_smooth(path, *, closed=False):
    """No step is much larger than the mean one, in place or in direction."""
    places = centers(path)
    turns = np.stack([camera.world_to_camera[2, :3] for camera in path])
    for line in (places, turns):
        line = np.concatenate((line, line[:1])) if closed else line
        steps = np.linalg.norm(np.diff(line, axis=0), axis=1)
        assert steps.max() <= 4 * steps.mean() + 1e-9


def test_look_at_has_the_target_ahead_and_up_upwards():
    rng = np.random.default_rng(0)
    for _ in range(20):
        place, target, up = rng.normal(size=(3, 3))
        pose = look_at(place, target, up)
        np.testing.assert_allclose(center(pose), place, atol=1e-12)
        in_camera = pose[:3, :3] @ target + pose[:3, 3]
        np.testing.assert_allclose(in_camera[:2], 0, atol=1e-12)
        assert in_camera[2] > 0
        up_in_camera = pose[:3, :3] @ up
        assert abs(up_in_camera[0]) < 1e-12
        assert up_in_camera[1] < 0  # y points down
        assert np.linalg.det(pose[:3, :3]) == pytest.approx(1)


@pytest.mark.parametrize("target", [(0, 0, 5), (0, 0, -5), (0, 0, 0)])
def test_look_at_survives_a_direction_along_up_and_none_at_all(target):
    pose = look_at(np.zeros(3), np.array(target, float), np.array([0.0, 0, 1]))
    assert_rigid([view(pose)])
    if any(target):
        np.testing.assert_allclose(pose[2, :3], np.array(target) / 5, atol=1e-12)


def test_an_interpolated_path_passes_the_training_cameras_in_order():
    views = ring(12, turn=np.pi)
    path = interpolated_path(views, 400)
    assert len(path) == 400
    assert_rigid(path)
    assert_smooth(path)
    places = centers(path)
    step = np.linalg.norm(np.diff(places, axis=0), axis=1).max()
    nearest = []
    for v in views:
        distances = np.linalg.norm(places - center(v.world_to_camera), axis=1)
        nearest.append(int(distances.argmin()))
        assert distances.min() < step
        rotation = path[nearest[-1]].world_to_camera[:3, :3]
        angle = Rotation.from_matrix(rotation @ v.world_to_camera[:3, :3].T).magnitude()
        assert angle < 0.02
    assert nearest == sorted(nearest)
    np.testing.assert_allclose(path[0].world_to_camera, views[0].world_to_camera, atol=1e-9)
    np.testing.assert_allclose(path[-1].world_to_camera, views[-1].world_to_camera, atol=1e-9)


def test_between_cameras_of_a_ring_the_path_stays_on_it_and_looks_at_the_focus():
    path = interpolated_path(ring(24, turn=np.pi), 200)
    focus = np.array([0.5, -0.2, 0.3])
    for camera in path:
        # A spline through points 7.5 degrees apart: the chord's sagitta is 0.2 % of the radius.
        offset = center(camera.world_to_camera) - focus
        assert np.linalg.norm(offset[:2]) == pytest.approx(3, rel=0.003)
        ahead = camera.world_to_camera[2, :3]
        assert ahead @ -offset / np.linalg.norm(offset) > 0.9999


def test_cameras_out_of_order_are_chained_by_nearest_neighbour():
    views = ring(20, turn=np.pi)
    shuffled = [views[i] for i in np.random.default_rng(1).permutation(20)]
    in_order = centers(interpolated_path(views, 100))
    chained = centers(interpolated_path(shuffled, 100))
    if np.linalg.norm(chained[0] - in_order[0]) > 1e-6:
        chained = chained[::-1]
    np.testing.assert_allclose(chained, in_order, atol=1e-9)


def test_speed_is_constant_along_unevenly_spaced_cameras():
    places = np.array([0, 1, 1.1, 1.2, 4, 9.0])
    views = [
        view(look_at(np.array([x, 0, 0]), np.array([x, 0, 1]), np.array([0, -1.0, 0])))
        for x in places
    ]
    path = centers(interpolated_path(views, 91))
    np.testing.assert_allclose(path[:, 0], np.linspace(0, 9, 91), atol=0.35)
    assert (np.diff(path[:, 0]) > 0).all()  # no overshoot, no way back


def test_many_cameras_are_thinned_out():
    path = interpolated_path(ring(5 * MAX_KEYS, turn=np.pi), 50)
    assert len(path) == 50
    assert_rigid(path)
    assert_smooth(path)


def identical(n):
    return ring(1) * n


def collinear(n):
    places = np.linspace([0, 0, 0], [6, 0, 0], n)
    return [
        view(look_at(p, p + np.array([0, 5, -1]), np.array([0, 0, 1.0])), i)
        for i, p in enumerate(places)
    ]


CAPTURES = {
    "one camera": ring(1),
    "two cameras": ring(2, turn=np.pi / 2),
    "two opposite cameras": ring(2),
    "three cameras": ring(3),
    "identical cameras": identical(5),
    "cameras in a line": collinear(6),
    "two cameras in a line": collinear(2),
    "a ring": ring(),
    "an aerial survey": aerial(),
    "an aerial survey to and fro": aerial(flip=True),
    "one place, all around": [
        view(look_at(np.zeros(3), np.array([np.cos(a), np.sin(a), 0]), np.array([0, 0, 1.0])))
        for a in np.linspace(0, 6, 9)
    ],
}


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("make", [interpolated_path, ellipse_path])
@pytest.mark.parametrize("n_frames", [1, 2, 60])
def test_every_capture_gives_a_rigid_path(name, make, n_frames):
    path = make(CAPTURES[name], n_frames)
    assert len(path) == n_frames
    assert_rigid(path)
    assert [camera.name for camera in path] == [f"{i:05d}" for i in range(n_frames)]


def test_one_camera_gives_a_still():
    (only,) = ring(1)
    for camera in interpolated_path([only] * 3, 5):
        np.testing.assert_array_equal(camera.world_to_camera, only.world_to_camera)


def test_two_cameras_are_joined_straight_at_constant_turn():
    a, b = ring(2, turn=np.pi / 2)
    middle = interpolated_path([a, b], 3)[1].world_to_camera
    ends = centers([a, b])
    np.testing.assert_allclose(center(middle), ends.mean(0), atol=1e-9)
    relative = Rotation.from_matrix(b.world_to_camera[:3, :3] @ a.world_to_camera[:3, :3].T)
    half = Rotation.from_matrix(middle[:3, :3] @ a.world_to_camera[:3, :3].T)
    assert half.magnitude() == pytest.approx(relative.magnitude() / 2)


def assert_looks_at(path, focus):
    for camera in path:
        in_camera = camera.world_to_camera[:3, :3] @ focus + camera.world_to_camera[:3, 3]
        np.testing.assert_allclose(in_camera[:2] / in_camera[2], 0, atol=1e-9)
        assert in_camera[2] > 0


def test_the_ellipse_of_a_ring_is_that_ring_with_up_upwards():
    focus = np.array([0.5, -0.2, 0.3])
    path = ellipse_path(ring(24), 48)
    assert_rigid(path)
    assert_smooth(path, closed=True)
    assert_looks_at(path, focus)
    offsets = centers(path) - focus
    np.testing.assert_allclose(np.linalg.norm(offsets[:, :2], axis=1), 3, rtol=1e-9)
    np.testing.assert_allclose(offsets[:, 2], 1, atol=1e-9)
    ups = np.stack([-camera.world_to_camera[1, :3] for camera in path])
    assert (ups[:, 2] > 0.9).all()


def test_an_aerial_survey_is_circled_looking_down_at_the_ground():
    points = np.random.default_rng(0).normal(size=(500, 3)) * [3, 3, 0.1] + [4, 4, 0]
    for flip in (False, True):
        path = ellipse_path(aerial(flip=flip), 40, points=points)
        assert_rigid(path)
        assert_smooth(path, closed=True)
        np.testing.assert_allclose(centers(path)[:, 2], 10, atol=1e-9)
        assert_looks_at(path, np.array([4, 4, np.median(points[:, 2])]))


def test_cameras_in_a_line_are_circled_flatly_beside_it():
    path = ellipse_path(collinear(6), 40)
    places = centers(path)
    assert_rigid(path)
    up = np.array([0, 1, 5]) / np.sqrt(26)  # the cameras look down a little
    np.testing.assert_allclose(places @ up, 0, atol=1e-9)
    assert 0.05 < np.ptp(places[:, 1]) / np.ptp(places[:, 0]) < 0.2


def test_a_single_camera_is_circled_closely_around_its_line_of_sight():
    (only,) = ring(1)
    path = ellipse_path([only], 16)
    distances = np.linalg.norm(centers(path) - center(only.world_to_camera), axis=1)
    assert (distances > 0).all()
    ahead = only.world_to_camera[2, :3]
    np.testing.assert_allclose((centers(path) - center(only.world_to_camera)) @ ahead, 0, atol=1e-9)


def test_the_views_own_cameras_are_kept_as_they_are():
    views = [view(ring(3)[i].world_to_camera, i, 400 + i, width=100 + i) for i in range(3)]
    path = view_path(views)
    assert [camera.name for camera in path] == [v.name for v in views]
    for camera, v in zip(path, views):
        np.testing.assert_array_equal(camera.world_to_camera, v.world_to_camera)
        np.testing.assert_array_equal(camera.K, v.K)
        assert (camera.width, camera.height) == (v.width, v.height)


@pytest.mark.parametrize("make", [interpolated_path, ellipse_path])
def test_frames_have_the_most_common_size_and_its_median_intrinsics(make):
    poses = [v.world_to_camera for v in ring(5)]
    sizes = [(640, 480, 500), (640, 480, 510), (640, 480, 900), (320, 240, 250), (100, 100, 80)]
    views = [
        view(pose, i, f, width=w, height=h) for i, (pose, (w, h, f)) in enumerate(zip(poses, sizes))
    ]
    for camera in make(views, 4):
        assert (camera.width, camera.height, camera.K[0, 0]) == (640, 480, 510)


@pytest.mark.parametrize("make", [interpolated_path, ellipse_path])
def test_no_view_and_no_frame_are_refused(make):
    with pytest.raises(ValueError, match="views and n_frames must be at least 1, got 0 views"):
        make([], 5)
    with pytest.raises(ValueError, match="n_frames 0"):
        make(ring(3), 0)
