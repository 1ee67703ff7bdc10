# SPDX-License-Identifier: Apache-2.0
"""The loss of photographs with masks, against its definition written out and finite differences."""

import itertools
import math

import pytest
import torch
from torch_memory import LiveMemory

from gs_train.losses.loss import Crop, add_carving, loss_and_gradient, photometric_loss
from gs_train.losses.mask import CARVED, IGNORED, KEPT
from gs_train.losses.ssim import C1, C2, HALO, WINDOW, window_weights
from gs_train.renderers import Rect, View
from gs_train.sizing.forecasts.batches import CARVING

LAMBDA = 0.2


def _view(width: int, height: int) -> View:
    return View("v", torch.eye(4), torch.eye(3), width, height)


def _masked(width: int, height: int, *, share: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    """An image in float64, and a photograph with a hole and scattered hidden pixels."""
    draw = torch.Generator().manual_seed(width)
    image = torch.rand((height, width, 3), generator=draw, dtype=torch.float64)
    truth = torch.randint(0, 256, (height, width, 4), generator=draw, dtype=torch.uint8)
    hidden = torch.rand((height, width), generator=draw) < share
    hidden[height // 3 : height // 2, width // 4 : width // 2] = True
    truth[..., 3] = torch.where(hidden, IGNORED, KEPT)
    return image, truth


def _by_definition(image: torch.Tensor, truth: torch.Tensor) -> float:
    """The loss of a whole view: one pixel and one window after the other."""
    height, width, _ = image.shape
    kept = truth[..., 3] == KEPT
    colours = truth[..., :3].double() / 255
    l1 = float((image - colours).abs()[kept].sum()) / (3 * height * width)
    weights = torch.tensor(window_weights(), dtype=torch.float64)
    window = weights[:, None] * weights
    dssim = 0.0
    for y, x, c in itertools.product(range(height - 10), range(width - 10), range(3)):
        if not kept[y + HALO, x + HALO]:
            continue
        there = slice(y, y + WINDOW), slice(x, x + WINDOW)
        w = window[kept[there]]
        w = w / w.sum()
        a, b = image[there][..., c][kept[there]], colours[there][..., c][kept[there]]
        mean_a, mean_b = (w * a).sum(), (w * b).sum()
        spread = (w * (a - mean_a) ** 2).sum() + (w * (b - mean_b) ** 2).sum()
        together = (w * (a - mean_a) * (b - mean_b)).sum()
        luminance = (2 * mean_a * mean_b + C1) / (mean_a**2 + mean_b**2 + C1)
        dssim += 1 - float(luminance * (2 * together + C2) / (spread + C2))
    dssim /= 3 * (height - 10) * (width - 10)
    return (1 - LAMBDA) * l1 + LAMBDA * dssim


def _loss(image: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    view = _view(truth.shape[1], truth.shape[0])
    return photometric_loss(image, truth, Crop(view, view.rect), LAMBDA)


@pytest.mark.parametrize("size", [(11, 11), (13, 12), (17, 23)])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.95])
def test_the_loss_is_its_definition(size: tuple[int, int], share: float) -> None:
    image, truth = _masked(*size, share=share)
    expected = _by_definition(image, truth)
    assert _loss(image, truth).item() == pytest.approx(expected, rel=1e-11, abs=1e-15)


@pytest.mark.parametrize("share", [0.1, 0.6])
def test_the_gradient_is_that_of_finite_differences(share: float) -> None:
    image, truth = _masked(15, 14, share=share)
    view = _view(15, 14)
    _, gradient = loss_and_gradient(image, truth, Crop(view, view.rect), LAMBDA)
    step = 1e-6
    for place in range(image.numel()):
        ends = []
        for change in (-step, step):
            moved = image.clone()
            moved.view(-1)[place] += change
            ends.append(_loss(moved, truth).item())
        slope = (ends[1] - ends[0]) / (2 * step)
        assert gradient.view(-1)[place].item() == pytest.approx(slope, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("hidden", [0.0, 1e30, math.inf])
def test_no_bit_depends_on_what_is_hidden(hidden: float) -> None:
    image, truth = _masked(40, 33)
    view = _view(40, 33)
    crop = Crop(view, view.rect)
    expected, gradient = loss_and_gradient(image, truth, crop, LAMBDA)
    kept = truth[..., 3] == KEPT
    other, other_truth = image.clone(), truth.clone()
    other[~kept] = hidden
    other_truth[..., :3][~kept] = 99
    loss, other_gradient = loss_and_gradient(other, other_truth, crop, LAMBDA)
    assert torch.equal(loss, expected)
    assert torch.equal(other_gradient, gradient)
    assert not gradient[~kept].any()
    assert gradient[kept].all()


def test_a_mask_that_hides_nothing_gives_the_loss_without_one() -> None:
    image, truth = _masked(40, 33)
    truth[..., 3] = KEPT
    torch.testing.assert_close(_loss(image, truth), _loss(image, truth[..., :3]))


@pytest.mark.parametrize("value", [IGNORED, CARVED, 7, 254])
def test_a_mask_that_hides_all_leaves_neither_loss_nor_gradient(value: int) -> None:
    image, truth = _masked(20, 15)
    truth[..., 3] = value
    view = _view(20, 15)
    loss, gradient = loss_and_gradient(image, truth, Crop(view, view.rect), LAMBDA)
    assert loss.item() == 0.0
    assert not gradient.any()


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(9, 30), (11, 11), (43, 75), (130, 63), (481, 270)])
def test_the_kernel_equals_the_terms(size: tuple[int, int]) -> None:
    view = _view(*size)
    image, truth = _masked(*size)
    x_cut, y_cut = size[0] // 2, size[1] // 3
    for core in (view.rect, Rect(x_cut, 0, size[0], y_cut), Rect(0, y_cut, x_cut + 1, size[1])):
        crop = Crop(view, core)
        there = slice(crop.rect.y0, crop.rect.y1), slice(crop.rect.x0, crop.rect.x1)
        expected, slopes = loss_and_gradient(image[there], truth[there], crop, LAMBDA)
        on_device = image[there].float().cuda(), truth.cuda()[there]
        loss, gradient = loss_and_gradient(*on_device, crop, LAMBDA)
        assert loss.item() == pytest.approx(expected.item(), rel=2e-5, abs=1e-7)
        assert (gradient.cpu().double() - slopes).abs().max() < 1e-4 * slopes.abs().max()


@pytest.mark.parametrize("cut", [1, 20, 49])
def test_crops_add_up_to_the_whole_view(cut: int) -> None:
    view = _view(50, 31)
    image, truth = _masked(50, 31)
    expected, expected_gradient = loss_and_gradient(image, truth, Crop(view, view.rect), LAMBDA)
    total, gradient = 0.0, torch.zeros_like(image)
    for core in (Rect(0, 0, cut, 31), Rect(cut, 0, 50, 12), Rect(cut, 12, 50, 31)):
        crop = Crop(view, core)
        there = slice(crop.rect.y0, crop.rect.y1), slice(crop.rect.x0, crop.rect.x1)
        share, part = loss_and_gradient(image[there], truth[there], crop, LAMBDA)
        total += share.item()
        gradient[there] += part
    assert total == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-15)


def test_a_view_smaller_than_a_window_has_the_absolute_error_alone() -> None:
    image, truth = _masked(9, 30)
    kept = truth[..., 3] == KEPT
    error = (image - truth[..., :3].double() / 255).abs()[kept].sum() / (3 * 9 * 30)
    assert _loss(image, truth).item() == pytest.approx((1 - LAMBDA) * error.item())
    expected = _loss(image, truth)
    image[~kept] = math.inf
    assert torch.equal(_loss(image, truth), expected)


def _carved(width: int, height: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Alpha, a photograph with kept, ignored and carved pixels, and which are carved."""
    draw = torch.Generator().manual_seed(height)
    alpha = torch.rand((height, width), generator=draw)
    truth = torch.zeros((height, width, 4), dtype=torch.uint8)
    kinds = torch.tensor([IGNORED, CARVED, KEPT], dtype=torch.uint8)
    truth[..., 3] = kinds[torch.randint(0, 3, (height, width), generator=draw)]
    return alpha, truth, truth[..., 3] == CARVED


def test_carving_adds_the_mean_over_all_pixels_of_alpha_where_it_is_carved() -> None:
    alpha, truth, carved = _carved(50, 31)
    view, share = _view(50, 31), torch.tensor(0.25)
    leaf = alpha.clone().requires_grad_()
    expected = 0.5 * leaf[carved].sum() / (50 * 31)
    expected.backward()
    found, gradient = add_carving(share, alpha, truth, Crop(view, view.rect), weight=0.5)
    assert found.item() - 0.25 == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient, leaf.grad)


def test_carving_of_crops_adds_up_to_that_of_the_view() -> None:
    alpha, truth, _ = _carved(50, 31)
    view, nothing = _view(50, 31), torch.zeros(())
    whole, slopes = add_carving(nothing, alpha, truth, Crop(view, view.rect))
    total, gradient = 0.0, torch.zeros_like(alpha)
    for core in (Rect(0, 0, 20, 31), Rect(20, 0, 50, 12), Rect(20, 12, 50, 31)):
        crop = Crop(view, core)
        there = slice(crop.rect.y0, crop.rect.y1), slice(crop.rect.x0, crop.rect.x1)
        share, part = add_carving(nothing, alpha[there], truth[there], crop)
        total += share.item()
        gradient[there] += part
    assert total == pytest.approx(whole.item(), rel=1e-5)
    assert torch.equal(gradient, slopes)


def test_carving_takes_the_memory_that_is_forecast() -> None:
    alpha, truth, _ = _carved(500, 310)
    view, nothing = _view(500, 310), torch.zeros(())
    with LiveMemory() as memory:
        held = add_carving(nothing, 1.0 - alpha, truth, Crop(view, view.rect))
    assert len(held) == 2
    a_pixel = memory.most / (500 * 310)
    assert CARVING - 1 < a_pixel <= CARVING * 1.001
