# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gs_train.losses.ssim import ssim_sum, window_weights


def _oracle(image: Tensor, truth: Tensor) -> Tensor:
    """The SSIM map by five plain convolutions with the two-dimensional window."""
    g = torch.exp(-((torch.arange(11, dtype=torch.float64) - 5) ** 2) / (2 * 1.5**2))
    window = torch.outer(g / g.sum(), g / g.sum())[None, None].to(image)

    def mean(maps: Tensor) -> Tensor:
        return F.conv2d(maps.permute(2, 0, 1)[:, None], window)

    x, y = mean(image), mean(truth)
    var_x, var_y = mean(image**2) - x**2, mean(truth**2) - y**2
    covariance = mean(image * truth) - x * y
    a = (2 * x * y + 0.01**2) * (2 * covariance + 0.03**2)
    return (a / ((x**2 + y**2 + 0.01**2) * (var_x + var_y + 0.03**2))).sum()


def _pair(height: int, width: int, dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(height * 1000 + width)
    truth = torch.rand((height, width, 3), generator=generator, dtype=torch.float64)
    image = (
        truth + 0.1 * torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    ).clamp(0, 1)
    return image.to(device, dtype), truth.to(device, dtype)


@pytest.mark.parametrize("size", [(11, 11), (11, 40), (37, 12), (64, 75)])
def test_sum_and_gradient_equal_plain_convolutions(size: tuple[int, int]) -> None:
    image, truth = _pair(*size, torch.float64)
    ours, theirs = image.clone().requires_grad_(), image.clone().requires_grad_()
    total, expected = ssim_sum(ours, truth), _oracle(theirs, truth)
    (3 * total).backward()
    (3 * expected).backward()
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


def test_equal_images_have_an_ssim_of_one_everywhere_and_no_gradient() -> None:
    image, _ = _pair(20, 30, torch.float64)
    leaf = image.clone().requires_grad_()
    total = ssim_sum(leaf, image)
    total.backward()
    assert total.item() == pytest.approx(10 * 20 * 3, rel=1e-12)
    assert leaf.grad is not None
    assert leaf.grad.abs().max() < 1e-12


def test_an_image_smaller_than_the_window_adds_nothing() -> None:
    leaf = torch.rand((10, 50, 3), requires_grad=True)
    total = ssim_sum(leaf, torch.rand((10, 50, 3)))
    total.backward()
    assert total.item() == 0.0
    assert leaf.grad is not None
    assert not leaf.grad.any()


def test_the_window_is_normalised_and_symmetric() -> None:
    weights = window_weights()
    assert sum(weights) == pytest.approx(1.0, abs=1e-15)
    assert weights == weights[::-1]
    assert len(weights) == 11


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"truth must have the image's shape .*\(20, 20, 3\)"):
        ssim_sum(torch.rand((20, 20, 3)), torch.rand((20, 21, 3)))
