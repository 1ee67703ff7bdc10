# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_order import trajectory


def length(points, views):
    return np.linalg.norm(np.diff(points[views], axis=0), axis=1).sum()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), n=st.one_of(st.integers(1, 60), st.sampled_from([257, 700])))
def test_every_camera_comes_once_and_the_order_repeats(seed, n):
    rng = np.random.default_rng(seed)
    points = rng.random((n, 3)).round(1)  # rounded: many cameras in one place
    views = trajectory(points)
    assert sorted(views) == list(range(n))
    assert (views == trajectory(points)).all()


def test_two_thousand_cameras_get_a_path_near_the_shortest():
    points = np.c_[np.random.default_rng(0).random((2000, 2)), np.zeros(2000)]
    views = trajectory(points)
    # The shortest path through n random points of a unit square tends to 0.7124 sqrt(n).
    assert length(points, views) < 1.2 * 0.7124 * np.sqrt(2000)


def test_a_path_that_is_there_is_found():
    along = np.random.default_rng(1).permutation(120)
    views = trajectory(np.outer(along, [1.0, 2.0, 0.0]))
    assert along[views].tolist() in (list(range(120)), list(range(120))[::-1])


def test_cameras_in_one_place_are_ordered_by_direction():
    angles = np.random.default_rng(2).permutation(24) * (np.pi / 24)
    viewmats = np.tile(np.eye(4), (24, 1, 1))
    viewmats[:, 2, :3] = np.c_[np.cos(angles), np.sin(angles), 0 * angles]
    views = trajectory(torch.from_numpy(viewmats))
    assert np.abs(np.diff(angles[views])).max() == pytest.approx(np.pi / 24)


def test_direction_weight_zero_looks_at_places_alone():
    rng = np.random.default_rng(3)
    viewmats = np.tile(np.eye(4), (50, 1, 1))
    viewmats[:, :3, :3] = np.linalg.qr(rng.random((50, 3, 3)))[0]
    viewmats[:, :3, 3] = rng.random((50, 3))
    centres = -np.einsum("vij,vi->vj", viewmats[:, :3, :3], viewmats[:, :3, 3])
    assert (trajectory(viewmats, direction_weight=0) == trajectory(centres)).all()


@pytest.mark.parametrize(
    ("cameras", "options", "message"),
    [
        (np.zeros((0, 3)), {}, "cameras must be .* with V >= 1, got shape"),
        (np.zeros((2, 3, 4)), {}, r"cameras must be .* got shape \(2, 3, 4\)"),
        ([[0, 0, 0], [0, np.nan, 0]], {}, "cameras must be finite, got NaN or inf in camera 1"),
        (
            np.zeros((2, 3)),
            {"direction_weight": -1},
            "direction_weight must be at least 0 and finite, got -1",
        ),
        (
            np.zeros((2, 3)),
            {"direction_weight": 10**400},
            "direction_weight must be at least 0 and finite, got inf",
        ),
    ],
)
def test_bad_cameras_are_named(cameras, options, message):
    with pytest.raises(ValueError, match=message):
        trajectory(cameras, **options)
