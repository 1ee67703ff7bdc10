# SPDX-License-Identifier: Apache-2.0
"""The contract of the stages: crops, rows that do not show, thresholds."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from torch import Tensor

from gs_raster import Rect, TooManyInstancesError, cpu, types
from gs_raster.cpu.blending import _exp

sys.path.insert(0, str(Path(__file__).parent))
import raster_oracle as oracle
from raster_drawing import arrays, draw, facing_camera, plain_view
from raster_oracle import View

VIEW = oracle.random_view(50, width=150, height=101)
ROWS = {k: v.float() for k, v in oracle.random_rows(50, VIEW, n_rows=600).items()}


# Crops


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_pixels_of_any_rectangle_equal_those_of_the_whole_image(data):
    x0, x1 = sorted(data.draw(st.tuples(*[st.integers(0, VIEW.width)] * 2)))
    y0, y1 = sorted(data.draw(st.tuples(*[st.integers(0, VIEW.height)] * 2)))
    splats = cpu.project(arrays(ROWS), VIEW.camera, sh_degree=1)
    whole = cpu.blend(splats, cpu.sort(splats, VIEW.rect))
    part = cpu.blend(splats, cpu.sort(splats, Rect(x0, y0, x1, y1)))
    assert part.image.shape == (y1 - y0, x1 - x0, 3)
    assert np.array_equal(part.image, whole.image[y0:y1, x0:x1])
    assert np.array_equal(part.alpha, whole.alpha[y0:y1, x0:x1])


def test_a_rectangle_of_too_many_instances_is_refused_and_its_halves_are_not(monkeypatch):
    splats = cpu.project(arrays(ROWS), VIEW.camera, sh_degree=0)
    monkeypatch.setattr(types, "MAX_INSTANCES", 5_000)
    with pytest.raises(TooManyInstancesError, match=r"at most 5,000 tiles in all, got \d,\d+;"):
        cpu.sort(splats, VIEW.rect)
    for half in VIEW.rect.halves():
        assert cpu.sort(splats, half).n_pairs <= 5_000


# Rows that do not show


def test_no_rows_give_a_black_image_and_empty_gradients():
    results = draw({k: v[:0] for k, v in ROWS.items()}, VIEW, absgrad=True)
    assert results["image"].shape == (101, 150, 3)
    assert results["image"].count_nonzero() == 0
    assert results["alpha"].count_nonzero() == 0
    assert results["grad shN"].shape == (0, 15, 3)
    assert results["absgrad"].shape == (0, 2)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"means": torch.tensor([[0.0, 0.0, -3.0]])}, id="behind the camera"),
        pytest.param({"means": torch.tensor([[0.0, 0.0, 0.009]])}, id="nearer than near"),
        pytest.param({"means": torch.tensor([[0.0, 0.0, 2e10]])}, id="farther than far"),
        pytest.param({"means": torch.tensor([[50.0, 0.0, 3.0]])}, id="beside the image"),
        pytest.param({"opacities": torch.tensor([-5.6])}, id="fainter than 1/255"),
        pytest.param({"opacities": torch.tensor([-torch.inf])}, id="opacity 0"),
        pytest.param({"quats": torch.zeros(1, 4)}, id="no rotation"),
        pytest.param({"scales": torch.full((1, 3), 400.0)}, id="scale that overflows"),
    ],
)
def test_rows_that_cannot_show_draw_nothing_and_get_no_gradient(change):
    rows = facing_camera([3.0]) | {k: v.double() for k, v in change.items()}
    results = draw(rows, plain_view())
    assert results["radii"].tolist() == [[0, 0]]
    assert all(value.count_nonzero() == 0 for value in results.values())


# A logit of +infinity is opacity 1.
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, float("nan")) for name in oracle.ATTRIBUTES),
        *((name, float("inf")) for name in oracle.ATTRIBUTES if name != "opacities"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_with_values_that_are_not_finite_are_as_if_they_were_not_there(name, value, dtype):
    rows = {k: v.to(dtype) for k, v in ROWS.items()}
    broken = {k: v.clone() for k, v in rows.items()}
    victims = torch.arange(0, 600, 5)
    broken[name].view(600, -1)[victims, -1] = value
    kept = torch.ones(600, dtype=torch.bool)
    kept[victims] = False
    expected = draw({k: v[kept] for k, v in rows.items()}, VIEW)
    found = draw(broken, VIEW)
    assert found["radii"][victims].count_nonzero() == 0
    assert torch.equal(found["image"], expected["image"])
    for key in oracle.ATTRIBUTES:
        assert torch.equal(found[f"grad {key}"][kept], expected[f"grad {key}"])
        assert found[f"grad {key}"][victims].count_nonzero() == 0


def test_splats_of_opacity_zero_draw_nothing_and_get_a_finite_gradient():
    n = 2
    splats = cpu.Splats(
        means2d=np.full((n, 2), 10.0),
        conics=np.array([[0.1, 0.0, 0.1]] * n),
        depths=np.ones(n),
        radii=np.full((n, 2), 9, np.int32),
        opacities=np.zeros(n),
        colors=np.ones((n, 3)),
    )
    blended = cpu.blend(splats, cpu.sort(splats, plain_view().rect))
    found = cpu.blend_backward(
        blended, np.ones_like(blended.image), np.ones_like(blended.alpha), absgrad=True
    )
    assert not blended.image.any()
    for grads in (found.means2d, found.conics, found.opacities, found.colors, found.absgrad):
        assert np.isfinite(grads).all()
        assert not grads.any()


# Extremes and thresholds


def assert_matches_oracle(rows: dict[str, Tensor], view: View) -> dict[str, Tensor]:
    leaves = oracle.leaves(rows, torch.float64)
    splats = oracle.project(leaves, view, sh_degree=0)
    expected = oracle.composite(splats, view.width, view.height)
    image, alpha = expected.image, expected.alpha
    (image.square().sum() + (image[..., 0] * alpha[..., 0]).sum()).backward()
    found = draw(rows, view, sh_degree=0)
    torch.testing.assert_close(found["image"], image.detach(), rtol=0, atol=1e-10)
    for name in oracle.ATTRIBUTES:
        grad = leaves[name].grad
        floor = 1e-7 * max(grad.abs().max().item(), 1e-6)
        torch.testing.assert_close(found[f"grad {name}"], grad, rtol=1e-6, atol=floor)
    return found


def test_a_splat_far_larger_than_the_image_covers_all_of_it():
    rows = facing_camera([2.0, 4.0], scale=8.0)
    found = assert_matches_oracle(rows, plain_view(70, 50))
    assert found["radii"].min() > 1e4
    assert found["alpha"].min() > 0.9


def test_alpha_stays_below_its_clamp_and_clamped_pixels_pass_no_gradient_to_opacity():
    rows = facing_camera([3.0], opacity=12.0, scale=2.0)
    found = assert_matches_oracle(rows, plain_view())
    assert found["alpha"].max().item() == pytest.approx(0.999, abs=1e-12)


def test_a_pixel_stops_before_its_transmittance_reaches_the_limit():
    # 0.05^3 = 1.25e-4 stays, the fourth splat would reach 6e-6: it is not drawn at all.
    opacity = torch.logit(torch.tensor(0.95, dtype=torch.float64)).item()
    rows = facing_camera([2.0, 3.0, 4.0, 5.0, 6.0], opacity=opacity, scale=2.0)
    rows["sh0"] = torch.eye(5, 3, dtype=torch.float64)[:, None] * 10
    rows["sh0"][3] = rows["sh0"][4] = 1000.0
    found = assert_matches_oracle(rows, plain_view())
    assert found["alpha"].max() < 1 - 1e-4
    assert found["image"].max() < 5
    assert found["grad opacities"][3:].count_nonzero() == 0


def test_rows_of_equal_depth_are_drawn_in_the_order_of_rows():
    rows = facing_camera([3.0, 3.0], opacity=12.0)
    rows["sh0"] = torch.tensor([[[2.0, -2.0, -2.0]], [[-2.0, 2.0, -2.0]]]).double()
    view = plain_view()
    middle = draw(rows, view)["image"][10, 16]
    assert middle[0] > 0.9
    assert middle[1] < 0.01
    swapped = draw({k: v.flip(0) for k, v in rows.items()}, view)["image"][10, 16]
    assert torch.equal(swapped, middle[[1, 0, 2]])


def test_many_rows_of_a_few_depths_keep_the_order_of_rows_at_each_depth():
    # Enough of them that a sort which is not stable would mix them up.
    rows = facing_camera([3.0, 2.0] * 150, opacity=-3.0)
    g = torch.Generator().manual_seed(0)
    rows["sh0"] = torch.rand(300, 1, 3, generator=g, dtype=torch.float64)
    assert_matches_oracle(rows, plain_view())


def test_near_and_far_are_included():
    rows = facing_camera([1.0, 2.0, 3.0, 4.0])
    radii = draw(rows, plain_view(), near=2.0, far=3.0)["radii"]
    assert (radii > 0).all(1).tolist() == [False, True, True, False]


def test_rows_not_above_the_radius_clip_do_not_show():
    rows = facing_camera([3.0, 30.0], scale=-2.0)
    wide, narrow = draw(rows, plain_view())["radii"][:, 0].tolist()
    assert wide > narrow > 0
    clipped = draw(rows, plain_view(), radius_clip=narrow)["radii"]
    assert clipped.tolist() == [[wide, wide], [0, 0]]


def test_antialiasing_dims_splats_smaller_than_a_pixel():
    rows = facing_camera([30.0], scale=-1.5)
    classic = draw(rows, plain_view())["alpha"].max()
    antialiased = draw(rows, plain_view(), antialiased=True)["alpha"].max()
    assert 0 < antialiased < 0.5 * classic


def test_the_degree_in_use_may_be_below_the_degree_that_is_stored():
    results = draw(ROWS, VIEW, sh_degree=1)
    assert results["grad shN"][:, :3].count_nonzero() > 0
    assert results["grad shN"][:, 3:].count_nonzero() == 0
    without = ROWS | {"shN": ROWS["shN"][:, :3]}
    assert torch.equal(draw(without, VIEW, sh_degree=1)["image"], results["image"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_exponential_is_within_one_unit_in_the_last_place(dtype):
    @njit
    def exponentials(values, out):
        for i in range(len(values)):
            out[i] = _exp(values[i])

    values = np.linspace(-80, 0, 100_001).astype(dtype)
    found = np.empty_like(values)
    exponentials(values, found)
    error = np.abs(found / np.exp(values.astype(np.longdouble)) - 1).max()
    assert error < np.finfo(dtype).eps
    assert found[-1] == 1
