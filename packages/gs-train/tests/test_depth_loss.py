# SPDX-License-Identifier: Apache-2.0
"""The loss of photographs with depth maps, against its definition and finite differences."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from random_scenes import leaves, random_rows, random_view
from torch import Tensor
from torch_memory import LiveMemory

from gs_train.losses.channels import has_depth, without_depth
from gs_train.losses.depth import add_depth, depth_bytes, given_inverse
from gs_train.losses.loss import Crop, loss_and_gradient, photometric_loss
from gs_train.losses.mask import IGNORED, KEPT, has_mask
from gs_train.renderers import (
    DepthMeaning,
    InverseDepth,
    MetricDepth,
    Rect,
    RenderOptions,
    View,
    make_renderer,
    with_depths,
)
from gs_train.sizing.forecasts.batches import DEPTHS

OF = InverseDepth(3.0, -0.25)
METRIC = MetricDepth(1e-4)
KINDS = pytest.mark.parametrize("of", [OF, METRIC], ids=["inverse", "metric"])
WIDTH, HEIGHT = 50, 31
VIEW = View("v", torch.eye(4), torch.eye(3), WIDTH, HEIGHT, OF)
WHOLE = Crop(VIEW, VIEW.rect)
NOTHING = torch.zeros((), dtype=torch.float64)


def drawn(*, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Alpha and sum of depths, both 0 at some pixels, as where no splat is."""
    draw = torch.Generator().manual_seed(1)
    alpha = torch.rand((HEIGHT, WIDTH), generator=draw, dtype=dtype)
    depth = alpha * (0.5 + 4 * torch.rand((HEIGHT, WIDTH), generator=draw, dtype=dtype))
    for plane in (alpha, depth):
        plane[3:6, 4:40] = 0.0
    return alpha, depth


def photograph(*, is_masked: bool = False) -> Tensor:
    """(HEIGHT, WIDTH, 5 or 6) uint8."""
    draw = torch.Generator().manual_seed(2)
    truth = torch.randint(0, 256, (HEIGHT, WIDTH, 6), generator=draw, dtype=torch.uint8)
    truth[..., 3] = KEPT
    truth[10:20, 5:30, 3] = IGNORED
    truth[15:25, 20:35, 4:] = 0  # in part below the mask; of a metric map: unknown
    return truth if is_masked else truth[..., [0, 1, 2, 4, 5]].contiguous()


def by_definition(alpha: Tensor, depth: Tensor, truth: Tensor, of: DepthMeaning) -> float:
    """One pixel after the other."""
    total = 0.0
    for y in range(HEIGHT):
        for x in range(WIDTH):
            if truth.shape[2] == 6 and truth[y, x, 3] != KEPT:
                continue
            value = int(truth[y, x, -2]) + 256 * int(truth[y, x, -1])
            if isinstance(of, MetricDepth):
                if not value:
                    continue
                given = 1 / (value * of.unit)
            else:
                given = max(value / 65536 * of.scale + of.offset, 0.0)
            a, d = float(alpha[y, x]), float(depth[y, x])
            total += abs((a / (d / a) if a else 0.0) - given)
    return total / (WIDTH * HEIGHT)


@KINDS
@pytest.mark.parametrize("is_masked", [False, True])
def test_the_loss_is_its_definition(is_masked: bool, of: DepthMeaning) -> None:
    truth = photograph(is_masked=is_masked)
    share, _, _ = add_depth(NOTHING + 0.5, *drawn(), truth, WHOLE, of, weight=0.25)
    expected = 0.5 + 0.25 * by_definition(*drawn(), truth, of)
    assert share.item() == pytest.approx(expected, rel=1e-12)


@KINDS
@pytest.mark.parametrize("is_masked", [False, True])
def test_the_gradients_are_those_of_finite_differences(is_masked: bool, of: DepthMeaning) -> None:
    truth, planes = photograph(is_masked=is_masked), drawn()
    _, *gradients = add_depth(NOTHING, *planes, truth, WHOLE, of, weight=100.0)
    step = 1e-7
    for k, gradient in enumerate(gradients):
        for place in range(0, WIDTH * HEIGHT, 7):
            if not planes[0].view(-1)[place]:
                assert gradient.view(-1)[place] == 0.0
                continue
            ends = []
            for change in (-step, step):
                moved = [plane.clone() for plane in planes]
                moved[k].view(-1)[place] += change
                ends.append(add_depth(NOTHING, *moved, truth, WHOLE, of, weight=100.0)[0].item())
            slope = (ends[1] - ends[0]) / (2 * step)
            assert gradient.view(-1)[place].item() == pytest.approx(slope, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 1e-42, 1e-20, 1.0])
def test_gradients_stay_bounded_where_alpha_falls_to_0(alpha: float) -> None:
    a = torch.full((HEIGHT, WIDTH), alpha)
    share, of_alpha, of_depth = add_depth(
        torch.zeros(()), a, a * 2.0, photograph(), WHOLE, OF, weight=float(WIDTH * HEIGHT)
    )
    assert share.isfinite()
    assert of_alpha.abs().max() <= 1.0  # two over the mean depth
    assert of_depth.abs().max() <= 0.25  # one over its square


@KINDS
@pytest.mark.parametrize("cut", [1, 20, 49])
def test_crops_add_up_to_the_whole_view(cut: int, of: DepthMeaning) -> None:
    truth, (alpha, depth) = photograph(is_masked=True), drawn()
    whole, *expected = add_depth(NOTHING, alpha, depth, truth, WHOLE, of, weight=2.0)
    total, found = 0.0, [torch.zeros_like(alpha), torch.zeros_like(alpha)]
    for core in (Rect(0, 0, cut, 31), Rect(cut, 0, 50, 12), Rect(cut, 12, 50, 31)):
        crop = Crop(VIEW, core)
        there = slice(crop.rect.y0, crop.rect.y1), slice(crop.rect.x0, crop.rect.x1)
        share, *parts = add_depth(
            NOTHING, alpha[there], depth[there], truth[there], crop, of, weight=2.0
        )
        total += share.item()
        for sum_, part in zip(found, parts):
            sum_[there] += part
    assert total == pytest.approx(whole.item(), rel=1e-12)
    assert all(map(torch.equal, found, expected))


def test_what_a_mask_hides_counts_for_nothing() -> None:
    truth, (alpha, depth) = photograph(is_masked=True), drawn()
    expected = add_depth(NOTHING, alpha, depth, truth, WHOLE, OF, weight=1.0)
    hidden = truth[..., 3] != KEPT
    truth[..., 4:][hidden] = 7
    alpha[hidden], depth[hidden] = 0.3, torch.inf
    found = add_depth(NOTHING, alpha, depth, truth, WHOLE, OF, weight=1.0)
    assert torch.equal(found[0], expected[0])
    assert all(not gradient[hidden].any() for gradient in found[1:])


def test_what_a_metric_map_does_not_know_counts_for_nothing() -> None:
    truth, (alpha, depth) = photograph(), drawn()
    unknown = (truth[..., 3:] == 0).all(dim=2)
    assert 100 < unknown.sum() < 200
    expected = add_depth(NOTHING, alpha, depth, truth, WHOLE, METRIC, weight=1.0)
    alpha[unknown], depth[unknown] = 0.3, 0.9
    found = add_depth(NOTHING, alpha, depth, truth, WHOLE, METRIC, weight=1.0)
    assert torch.equal(found[0], expected[0])
    assert all(not gradient[unknown].any() for gradient in found[1:])
    truth[..., 3:] = 0  # nothing is known at all
    share, *gradients = add_depth(NOTHING, alpha, depth, truth, WHOLE, METRIC, weight=1.0)
    assert share == 0
    assert not any(gradient.any() for gradient in gradients)


def test_a_metric_map_is_one_over_its_depths() -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    truth = torch.zeros((256, 256, 5), dtype=torch.uint8)
    truth[..., 3:] = torch.from_numpy(depth_bytes(values))
    found = given_inverse(truth, MetricDepth(0.001), torch.float64).flatten().numpy()
    assert found[0] == np.inf
    np.testing.assert_allclose(found[1:], 1000 / np.arange(1, 65536), rtol=1e-15)


@pytest.mark.parametrize("is_masked", [False, True])
def test_colours_do_not_see_the_map(is_masked: bool) -> None:
    truth = photograph(is_masked=is_masked)
    image = torch.rand((HEIGHT, WIDTH, 3), generator=torch.Generator().manual_seed(3))
    alone = truth[..., :-2].contiguous()
    assert (has_depth(truth), has_mask(truth)) == (True, is_masked)
    assert (has_depth(alone), has_mask(alone)) == (False, is_masked)
    assert torch.equal(without_depth(truth), alone)
    assert without_depth(alone) is alone
    assert torch.equal(
        photometric_loss(image, truth, WHOLE, 0.2), photometric_loss(image, alone, WHOLE, 0.2)
    )
    ours, theirs = (loss_and_gradient(image, one, WHOLE, 0.2) for one in (truth, alone))
    assert all(map(torch.equal, ours, theirs))


def test_bytes_hold_all_values() -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    truth = torch.zeros((256, 256, 5), dtype=torch.uint8)
    truth[..., 3:] = torch.from_numpy(depth_bytes(values))
    found = given_inverse(truth, InverseDepth(65536.0, 1.0), torch.float64)
    np.testing.assert_array_equal(found.numpy(), values + 1.0)


@KINDS
def test_depths_take_the_memory_that_is_forecast(of: DepthMeaning) -> None:
    draw = torch.Generator().manual_seed(1)
    view = View("v", torch.eye(4), torch.eye(3), 500, 310, OF)
    truth = torch.randint(0, 256, (310, 500, 6), generator=draw, dtype=torch.uint8)
    nothing = torch.zeros(())
    with LiveMemory() as memory:
        alpha = torch.full((310, 500), 0.5)
        depth = alpha * 3.0
        held = add_depth(nothing, alpha, depth, truth, Crop(view, view.rect), of, weight=1.0)
    assert len(held) == 3
    a_pixel = memory.most / (500 * 310)
    assert DEPTHS - 1 < a_pixel <= DEPTHS * 1.001


# ------------------------------------------------------------------------- through the renderer


def test_rows_get_the_gradients_of_finite_differences() -> None:
    """In float64, of what places a row and of what makes it opaque."""
    view = random_view(5, WIDTH, HEIGHT)
    view = dataclasses.replace(view, inverse_depth=OF)
    rows, truth = random_rows(5, view, n_rows=30, n_bases=0), photograph(is_masked=True)
    draws, crop = with_depths(make_renderer("cpu", RenderOptions())), Crop(view, view.rect)

    def loss(rows: dict[str, Tensor], *, back: bool = False) -> float:
        splats = draws.project(rows, view, sh_degree=0)
        _, alpha, depth = draws.rasterize_with_depth(splats)
        share, *slopes = add_depth(
            NOTHING, alpha[..., 0], depth[..., 0], truth, crop, OF, weight=10.0
        )
        if back:
            torch.autograd.backward([alpha, depth], [slope[..., None] for slope in slopes])
        return share.item()

    held = leaves(rows, torch.float64)
    loss(held, back=True)
    step = 1e-6
    for name in ("means", "scales", "quats", "opacities"):
        gradient = held[name].grad
        assert gradient is not None
        assert gradient.any()
        for place in range(rows[name].numel()):
            ends = []
            for change in (-step, step):
                moved = rows[name].clone()
                moved.view(-1)[place] += change
                ends.append(loss({**rows, name: moved}))
            slope = (ends[1] - ends[0]) / (2 * step)
            assert gradient.view(-1)[place].item() == pytest.approx(slope, rel=1e-4, abs=1e-6)
