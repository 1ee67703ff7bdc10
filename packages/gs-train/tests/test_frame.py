# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from gs_train.frame import Frame


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
