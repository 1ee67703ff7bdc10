# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch

from gs_train.errors import InputError
from gs_train.rows.counter_random import Purpose, uniform
from gs_train.scene.initialize import rows_from_points


@pytest.fixture
def cloud():
    random = np.random.default_rng(0)
    return random.normal(size=(200, 3)), random.integers(0, 256, (200, 3), dtype=np.uint8)


def test_rows_have_gsplats_names_shapes_and_types(cloud):
    for degree, k in ((0, 0), (1, 3), (2, 8), (3, 15)):
        rows = rows_from_points(*cloud, sh_degree=degree, seed=0)
        assert {name: tuple(values.shape) for name, values in rows.items()} == {
            "means": (200, 3),
            "scales": (200, 3),
            "quats": (200, 4),
            "opacities": (200,),
            "sh0": (200, 1, 3),
            "shN": (200, k, 3),
        }
        assert all(v.dtype == torch.float32 and v.is_contiguous() for v in rows.values())
        assert not rows["shN"].any()


def test_scales_are_the_spacing_by_brute_force(cloud):
    points, _ = cloud
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    nearest = np.sort(distances, axis=1)[:, 1:4]
    expected = np.log(2.5 * np.sqrt((nearest**2).mean(axis=1)))
    rows = rows_from_points(*cloud, sh_degree=0, scale=2.5, seed=0)
    for axis in range(3):
        # float32 of a number of size 1.
        np.testing.assert_allclose(rows["scales"][:, axis].numpy(), expected, atol=1e-6)


def test_opacity_colour_and_position_are_the_given_ones(cloud):
    points, colors = cloud
    rows = rows_from_points(*cloud, sh_degree=3, opacity=0.1, seed=0)
    np.testing.assert_array_equal(rows["means"].numpy(), points.astype(np.float32))
    torch.testing.assert_close(torch.sigmoid(rows["opacities"]), torch.full((200,), 0.1))
    # The constant harmonic is 1 / (2 sqrt(pi)).
    shown = 0.5 + rows["sh0"][:, 0].double().numpy() / (2 * np.sqrt(np.pi))
    np.testing.assert_allclose(shown, colors / 255.0, atol=1e-6)


def test_rotations_are_random_by_seed_and_row(cloud):
    rows = rows_from_points(*cloud, sh_degree=0, seed=5)
    assert torch.equal(rows["quats"], uniform(5, Purpose.INITIAL_QUATS, 0, 200, 4))
    other = rows_from_points(*cloud, sh_degree=0, seed=6)
    assert not torch.equal(rows["quats"], other["quats"])


def test_points_may_lie_backwards_and_be_read_only(cloud):
    points, colors = cloud
    expected = rows_from_points(points, colors, sh_degree=0, seed=0)["scales"].flip(0)
    backwards = points[::-1]
    backwards.flags.writeable = False
    found = rows_from_points(backwards, colors[::-1].copy(), sh_degree=0, seed=0)["scales"]
    assert torch.equal(found, expected)


def test_a_point_astray_widens_no_scale():
    random = np.random.default_rng(1)
    points, colors = random.random((3000, 3)), random.integers(0, 256, (3000, 3), dtype=np.uint8)
    points[1] = points[0] = points[2] = points[3]
    expected = rows_from_points(points, colors, sh_degree=0, seed=0)["scales"]
    points[7] = 1e6
    found = rows_from_points(points, colors, sh_degree=0, seed=0)["scales"]
    # Of those that coincide it is a millionth of the diagonal, which may be five times as long.
    others = (expected - found).abs()[:, 0] > 1.7
    assert others.nonzero()[:, 0].tolist() == [7]


def test_points_that_coincide_get_a_small_finite_scale(cloud):
    points, colors = cloud
    points[:5] = points[0]
    rows = rows_from_points(points, colors, sh_degree=0, seed=0)
    diagonal = np.linalg.norm(points.max(axis=0) - points.min(axis=0))
    np.testing.assert_allclose(
        rows["scales"][:5].numpy(), np.full((5, 3), np.log(1e-6 * diagonal)), rtol=1e-6
    )
    assert torch.isfinite(rows["scales"]).all()


def test_clouds_that_cannot_be_started_from_are_refused(cloud):
    points, colors = cloud
    with pytest.raises(InputError, match="reconstruction must have at least 4 points, got 3"):
        rows_from_points(points[:3], colors[:3], sh_degree=0, seed=0)
    with pytest.raises(InputError, match="points must not all coincide, got 5 times"):
        rows_from_points(np.ones((5, 3)), colors[:5], sh_degree=0, seed=0)
    points[7, 1] = np.nan
    with pytest.raises(InputError, match="points must be finite, got 1 of 200 with NaN or Inf"):
        rows_from_points(points, colors, sh_degree=0, seed=0)


def test_options_out_of_range_are_refused(cloud):
    with pytest.raises(InputError, match=r"opacity must be above 0 and below 1, got 1.0"):
        rows_from_points(*cloud, sh_degree=0, opacity=1.0, seed=0)
    with pytest.raises(InputError, match="scale must be above 0 and finite, got 0"):
        rows_from_points(*cloud, sh_degree=0, scale=0, seed=0)
    with pytest.raises(InputError, match="sh_degree must be 0, 1, 2 or 3, got 4"):
        rows_from_points(*cloud, sh_degree=4, seed=0)


def test_arrays_of_other_shapes_are_refused(cloud):
    points, colors = cloud
    with pytest.raises(ValueError, match=r"points must be \(P, 3\), got \(200, 2\)"):
        rows_from_points(points[:, :2], colors, sh_degree=0, seed=0)
    with pytest.raises(ValueError, match=r"colors must be uint8 of shape \(200, 3\), got float64"):
        rows_from_points(points, colors.astype(float), sh_degree=0, seed=0)
