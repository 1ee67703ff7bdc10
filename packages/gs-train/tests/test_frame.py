# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pytest
import torch
from georeferenced import UTM, moved_pose
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from gs_train.data.capture import Capture, CaptureView
from gs_train.data.frame import Frame, camera_centres
from gs_train.scene.camera_paths import ellipse_path, interpolated_path
from gs_train.scene.scene import Scene


def _orbit(centre: np.ndarray, radius: float, n: int = 12) -> np.ndarray:
    """Cameras on a ring that look at its centre."""
    poses = np.tile(np.eye(4), (n, 1, 1))
    for i, angle in enumerate(np.linspace(0, 2 * np.pi, n, endpoint=False)):
        rotation = Rotation.from_euler("y", -angle).as_matrix()
        position = centre - radius * rotation.T[:, 2]
        poses[i, :3, :3] = rotation
        poses[i, :3, 3] = -rotation @ position
    return poses


def test_a_ring_of_cameras_gets_unit_radius_around_the_origin() -> None:
    frame = Frame.from_cameras(_orbit(np.zeros(3), 250.0))
    assert frame.scale == pytest.approx(1 / 250)
    assert frame.shift == pytest.approx((0, 0, 0), abs=1e-9)
    assert frame.extent == pytest.approx(1.1)


def test_projections_are_the_same_in_both_frames() -> None:
    rng = np.random.default_rng(0)
    poses = _orbit(np.array([3.0, -2.0, 7.0]), 40.0)
    points = rng.normal(size=(50, 3)) * 5 + [3, -2, 7]
    frame = Frame.from_cameras(poses)
    for pose in poses:
        there = frame.pose_in(pose)
        before = points @ pose[:3, :3].T + pose[:3, 3]
        after = frame.points_in(points) @ there[:3, :3].T + there[:3, 3]
        np.testing.assert_allclose(after[:, :2] / after[:, 2:], before[:, :2] / before[:, 2:])
        np.testing.assert_allclose(after, before * frame.scale, atol=1e-12)
        np.testing.assert_array_equal(there[:3, :3], pose[:3, :3])


def test_rows_go_back_to_where_the_points_were() -> None:
    rng = np.random.default_rng(1)
    frame = Frame((-100.0, 20.0, 3.0), 0.01, 1.0)
    points = rng.normal(size=(20, 3)) * 30 + [100, -20, -3]
    rows = {
        "means": torch.from_numpy(frame.points_in(points)).float(),
        "scales": torch.full((20, 3), float(np.log(0.5 * frame.scale))),
        "opacities": torch.zeros(20),
    }
    out = frame.rows_out(rows)
    # float32 training coordinates of about 1 resolve 1e-7, here times 100.
    np.testing.assert_allclose(out["means"].numpy(), points, atol=2e-5)
    np.testing.assert_allclose(out["scales"].exp().numpy(), 0.5, rtol=1e-6)
    assert out["opacities"] is rows["opacities"]


def test_one_camera_makes_a_usable_frame() -> None:
    frame = Frame.from_cameras(np.eye(4)[None])
    assert frame.scale > 0
    assert frame.extent > 0


EPS = np.finfo(np.float64).eps


def _capture(poses: np.ndarray, points: np.ndarray) -> Capture:
    K = np.array([[50.0, 0, 32], [0, 50, 24], [0, 0, 1]])
    views = tuple(
        CaptureView(f"{i}.png", Path(f"{i}.png"), pose, K, 64, 48) for i, pose in enumerate(poses)
    )
    colors = np.zeros((len(points), 3), np.uint8)
    return Capture(Path(), views, points, colors, tuple(range(len(views))), ())


def _moved(poses: np.ndarray, offset: np.ndarray, scale: float) -> np.ndarray:
    return np.stack([moved_pose(pose, offset, scale) for pose in poses])


def _rounding(offset: np.ndarray, scale: float, size: float) -> float:
    """How far coordinates of a moved scene of so many units may be off, in those units.

    A coordinate near the offset is rounded to eps times its size some dozen times on its way: three
    products each for the pose, its centre and the pose in the frame, doubled by differences.
    """
    largest = float(np.abs(offset).sum()) + scale * size
    return 64 * EPS * largest / scale


@settings(deadline=None, max_examples=50)
@given(
    offset=st.tuples(*[st.floats(-1e7, 1e7)] * 3).map(np.array),
    scale=st.floats(-6, 6).map(lambda power: 10.0**power),
    seed=st.integers(0, 1000),
)
def test_the_origin_and_the_unit_of_a_capture_do_not_matter(
    offset: np.ndarray, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    poses = _orbit(rng.normal(size=3), 2.0 + rng.random(), n=9)
    poses[:, :3, 3] += rng.normal(size=(9, 3)) * 0.1
    points = rng.normal(size=(20, 3)) * 2
    device = torch.device("cpu")
    there = Scene.load(_capture(poses, points), device)
    here = Scene.load(_capture(_moved(poses, offset, scale), scale * points + offset), device)

    assert there.frame.scale > 0.1  # so that what is one unit off is at most ten off in training
    limit = 10 * _rounding(offset, scale, size=20.0)
    assert here.frame.scale * scale == pytest.approx(there.frame.scale, rel=limit)
    assert here.frame.extent == pytest.approx(there.frame.extent, rel=limit)
    shifted = there.frame.points_in(points), here.frame.points_in(scale * points + offset)
    np.testing.assert_allclose(*shifted, rtol=limit, atol=limit)
    for ours, theirs in zip(here.views, there.views):
        # And float32 rounds both.
        torch.testing.assert_close(ours.viewmat, theirs.viewmat, rtol=1e-6 + limit, atol=limit)


def test_a_rotation_kept_in_float32_moves_no_camera_far_from_the_origin() -> None:
    poses = _orbit(np.zeros(3), 3.0)
    poses[:, :3, :3] = poses[:, :3, :3].astype(np.float32)
    there = _moved(poses, np.array(UTM), 1.0)
    limit = _rounding(np.array(UTM), 1.0, size=3.0)
    np.testing.assert_allclose(
        camera_centres(there) - UTM, camera_centres(poses), rtol=0, atol=limit
    )
    assert Frame.from_cameras(there).scale == pytest.approx(1 / 3, rel=1e-6)


@pytest.mark.parametrize("kept_in", [np.float32, np.float64])
@pytest.mark.parametrize("make", [interpolated_path, ellipse_path])
def test_paths_of_a_moved_capture_are_the_moved_paths(make, kept_in) -> None:
    rng = np.random.default_rng(2)
    poses = _orbit(np.array([0.5, 0.2, -0.3]), 3.0)
    poses[:, :3, :3] = poses[:, :3, :3].astype(kept_in)
    poses[:, :3, 3] += rng.normal(size=(12, 3)) * 0.1
    points = rng.normal(size=(20, 3))
    there = make(_capture(poses, points).views, 16)
    here = make(_capture(_moved(poses, np.array(UTM), 1.0), points + UTM).views, 16)
    for ours, theirs in zip(here, there):
        # Spacing along a spline and the focus amplify what is rounded.
        limit = 100 * _rounding(np.array(UTM), 1.0, size=3.0)
        moved = moved_pose(theirs.world_to_camera, UTM)
        np.testing.assert_allclose(
            camera_centres(ours.world_to_camera[None]),
            camera_centres(moved[None]),
            rtol=0,
            atol=limit,
        )
        np.testing.assert_allclose(ours.world_to_camera[:3, :3], moved[:3, :3], rtol=0, atol=limit)


def test_cameras_in_one_place_far_from_the_origin_make_a_usable_frame() -> None:
    turns = Rotation.from_euler("y", np.linspace(0, 6, 9)[:, None]).as_matrix()
    poses = np.tile(np.eye(4), (9, 1, 1))
    poses[:, :3, :3] = turns
    frame = Frame.from_cameras(_moved(poses, np.array(UTM), 1.0))
    assert frame.scale == 1.0
    assert frame.extent == pytest.approx(1.1, rel=1e-6)
