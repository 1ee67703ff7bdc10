# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from gs_train.losses.loss import Crop, dssim_term, l1_term, loss_and_gradient, photometric_loss
from gs_train.renderers import Rect, View


def _view(width: int, height: int) -> View:
    return View("v", torch.eye(4), torch.eye(3), width, height)


def _images(view: View) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (view.height, view.width, 3)
    image = torch.rand(shape, generator=generator, dtype=torch.float64)
    return image, torch.rand(shape, generator=generator, dtype=torch.float64)


def _part(image: torch.Tensor, rect: Rect) -> torch.Tensor:
    return image[rect.y0 : rect.y1, rect.x0 : rect.x1]


@pytest.mark.parametrize("cut", [1, 5, 20, 33, 49])
def test_crops_add_up_to_the_whole_view_in_value_and_gradient(cut: int) -> None:
    view = _view(50, 31)
    image, truth = _images(view)
    whole = image.clone().requires_grad_()
    expected = photometric_loss(whole, truth, Crop(view, view.rect), 0.2)
    expected.backward()

    parts = image.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for core in (Rect(0, 0, cut, 31), Rect(cut, 0, 50, 12), Rect(cut, 12, 50, 31)):
        crop = Crop(view, core)
        total = total + photometric_loss(
            _part(parts, crop.rect), _part(truth, crop.rect), crop, 0.2
        )
    total.backward()
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(parts.grad, whole.grad, rtol=1e-9, atol=1e-15)


def test_a_crop_renders_five_pixels_more_inside_the_view_and_none_outside() -> None:
    view = _view(50, 31)
    assert Crop(view, Rect(0, 0, 20, 31)).rect == Rect(0, 0, 25, 31)
    assert Crop(view, Rect(20, 10, 50, 20)).rect == Rect(15, 5, 50, 25)


def test_terms_are_means_over_the_view() -> None:
    view = _view(40, 30)
    image, truth = _images(view)
    crop = Crop(view, view.rect)
    l1 = l1_term(image, truth, crop)
    assert l1.share.item() == pytest.approx((image - truth).abs().mean().item())
    assert l1.weight == 40 * 30 * 3
    assert dssim_term(image, image, crop).share.item() == pytest.approx(0.0, abs=1e-12)
    loss = photometric_loss(image, truth, crop, 0.2)
    parts = 0.8 * l1.share + 0.2 * dssim_term(image, truth, crop).share
    torch.testing.assert_close(loss, parts)


def test_photographs_may_be_bytes() -> None:
    view = _view(16, 16)
    truth = torch.randint(0, 256, (16, 16, 3), dtype=torch.uint8)
    image = torch.rand((16, 16, 3))
    crop = Crop(view, view.rect)
    expected = photometric_loss(image, truth.float() / 255, crop, 0.2)
    torch.testing.assert_close(photometric_loss(image, truth, crop, 0.2), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize(
    "size", [(9, 30), (11, 11), (12, 40), (43, 75), (64, 64), (130, 63), (481, 270)]
)
def test_the_kernels_equal_the_terms_in_value_and_gradient(
    size: tuple[int, int], as_bytes: bool
) -> None:
    view = _view(*size)
    image, truth = _images(view)
    truth = (0.8 * image + 0.2 * truth).clamp(0, 1)
    if as_bytes:
        truth = (truth * 255).to(torch.uint8)
    x_cut, y_cut = size[0] // 2, size[1] // 3
    for core in (view.rect, Rect(x_cut, 0, size[0], y_cut), Rect(0, y_cut, x_cut + 1, size[1])):
        crop = Crop(view, core)
        there = crop.rect
        expected_leaf = _part(image, there).clone().requires_grad_()
        expected = photometric_loss(expected_leaf, _part(truth, there), crop, 0.2)
        (3 * expected).backward()
        leaf = _part(image, there).float().cuda().requires_grad_()
        on_device = _part(truth, there).cuda()
        loss = photometric_loss(leaf, on_device if as_bytes else on_device.float(), crop, 0.2)
        (3 * loss).backward()
        # The sums are float32, and the variances differences of means up to 1.
        assert loss.item() == pytest.approx(expected.item(), rel=2e-5, abs=1e-7)
        assert leaf.grad is not None
        assert expected_leaf.grad is not None
        error = (leaf.grad.cpu().double() - expected_leaf.grad).abs().max()
        assert error < 1e-4 * expected_leaf.grad.abs().max()


@pytest.mark.gpu
def test_a_loss_that_is_only_looked_at_needs_no_gradient() -> None:
    view = _view(40, 30)
    image, truth = (part.float().cuda() for part in _images(view))
    crop = Crop(view, view.rect)
    with_grad = photometric_loss(image.clone().requires_grad_(), truth, crop, 0.2)
    assert photometric_loss(image, truth, crop, 0.2).item() == with_grad.item()


@pytest.mark.gpu
def test_the_loss_of_bytes_keeps_the_gradient_alone() -> None:
    view = _view(320, 240)
    image, truth = (part.float().cuda() for part in _images(view))
    truth = (255 * truth).to(torch.uint8)
    image.requires_grad_()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    photometric_loss(image, truth, Crop(view, view.rect), 0.2).backward()
    taken = (torch.cuda.max_memory_allocated() - before) / image.nbytes
    assert 1 <= taken <= 1.1


@pytest.mark.gpu
def test_the_kernels_give_the_same_bits_each_time() -> None:
    view = _view(481, 270)
    image, truth = (part.float().cuda() for part in _images(view))
    truth = (255 * truth).to(torch.uint8)
    found = []
    for _ in range(3):
        leaf = image.clone().requires_grad_()
        loss = photometric_loss(leaf, truth, Crop(view, view.rect), 0.2)
        loss.backward()
        assert leaf.grad is not None
        found.append((loss.item(), leaf.grad))
    assert all(value == found[0][0] for value, _ in found)
    assert all(torch.equal(grad, found[0][1]) for _, grad in found)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("core", [Rect(0, 0, 50, 31), Rect(3, 4, 30, 29)])
def test_value_and_gradient_are_those_of_the_loss(device: str, core: Rect) -> None:
    view = _view(50, 31)
    crop = Crop(view, core)
    image, truth = (_part(part.float().to(device), crop.rect) for part in _images(view))
    truth = (255 * truth).to(torch.uint8)
    leaf = image.clone().requires_grad_()
    loss = photometric_loss(leaf, truth, crop, 0.2, weight=0.25)
    loss.backward()
    value, gradient = loss_and_gradient(image.requires_grad_() * 1.0, truth, crop, 0.2, weight=0.25)
    assert torch.equal(value, loss.detach())
    assert torch.equal(gradient, leaf.grad)
    assert not value.requires_grad
    assert not gradient.requires_grad
    whole = photometric_loss(leaf, truth, crop, 0.2)
    torch.testing.assert_close(loss, 0.25 * whole)
