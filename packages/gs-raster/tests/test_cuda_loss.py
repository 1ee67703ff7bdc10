# SPDX-License-Identifier: Apache-2.0
"""The photometric loss and its gradient against float64."""

from __future__ import annotations

import math

import pytest
import torch
from raster_device import DEVICE
from torch import Tensor

import gs_raster
from gs_raster import Rect

pytestmark = pytest.mark.gpu

WINDOW = 11
_L1, _DSSIM = 0.8, 0.2


def pictures(height: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """An image that is near its photograph, as in training."""
    generator = torch.Generator().manual_seed(seed)
    waves = torch.rand(height // 7 + 2, width // 5 + 2, 3, generator=generator)
    smooth = torch.nn.functional.interpolate(
        waves.permute(2, 0, 1)[None], (height, width), mode="bilinear"
    )[0].permute(1, 2, 0)
    truth = (255 * smooth).to(torch.uint8)
    image = truth / 255.0 + 0.1 * torch.randn(height, width, 3, generator=generator)
    image[::3] = truth[::3] / 255.0  # errors of 0
    return image.contiguous().to(DEVICE), truth.contiguous().to(DEVICE)


def ssim_map(image: Tensor, truth: Tensor) -> Tensor:
    """(h - 10, w - 10, 3) by plain convolutions."""
    if min(image.shape[:2]) < WINDOW:
        return image.new_zeros(0)
    x, y = (values.permute(2, 0, 1)[:, None] for values in (image, truth))
    offsets = torch.arange(WINDOW, dtype=torch.float64) - WINDOW // 2
    line = torch.exp(-(offsets**2) / 4.5)
    line /= line.sum()
    window = torch.outer(line, line)[None, None]

    def mean(values: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(values, window)

    mx, my = mean(x), mean(y)
    xx, yy, xy = mean(x * x) - mx**2, mean(y * y) - my**2, mean(x * y) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    return ((2 * mx * my + c1) * (2 * xy + c2)) / ((mx**2 + my**2 + c1) * (xx + yy + c2))


def by_float64(
    image: Tensor, truth: Tensor, core: Rect, l1: float, dssim: float
) -> tuple[Tensor, Tensor]:
    leaf = image.double().cpu().requires_grad_()
    exact = (truth.cpu().float() / 255).double()  # as the loss reads it: an error may be 0
    inside = slice(core.y0, core.y1), slice(core.x0, core.x1)
    loss = l1 * (leaf[inside] - exact[inside]).abs().sum()
    loss = loss + dssim * (1 - ssim_map(leaf, exact)).sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def masked(truth: Tensor, seed: int = 0) -> Tensor:
    """(h, w, 4): with a hole, scattered hidden pixels, and all values that hide."""
    height, width, _ = truth.shape
    generator = torch.Generator().manual_seed(seed)
    states = torch.randint(0, 255, (height, width), generator=generator, dtype=torch.uint8)
    states[torch.rand(height, width, generator=generator) < 0.7] = 255
    states[height // 4 : height // 2, width // 3 : width // 3 + 25] = 0
    return torch.cat([truth, states[..., None].to(truth.device)], dim=2)


def masked_by_float64(
    image: Tensor, truth: Tensor, core: Rect, l1: float, dssim: float
) -> tuple[Tensor, Tensor]:
    """Windows by plain convolutions of what counts, over the convolution of the mask."""
    leaf = image.double().cpu().requires_grad_()
    counts = (truth.cpu()[..., 3] == 255).double()
    exact = (truth.cpu()[..., :3].float() / 255).double() * counts[..., None]
    seen = leaf * counts[..., None]
    inside = slice(core.y0, core.y1), slice(core.x0, core.x1)
    loss = l1 * (seen[inside] - exact[inside]).abs().sum()
    if min(image.shape[:2]) >= WINDOW:
        x, y = (values.permute(2, 0, 1)[:, None] for values in (seen, exact))
        offsets = torch.arange(WINDOW, dtype=torch.float64) - WINDOW // 2
        line = torch.exp(-(offsets**2) / 4.5)
        line /= line.sum()
        window = torch.outer(line, line)[None, None]
        half = WINDOW // 2
        centres = counts[half:-half, half:-half]
        whole = torch.nn.functional.conv2d(counts[None, None], window)[0].where(centres > 0, 1.0)

        def mean(values: Tensor) -> Tensor:
            return torch.nn.functional.conv2d(values, window) / whole

        mx, my = mean(x), mean(y)
        xx, yy, xy = mean(x * x) - mx**2, mean(y * y) - my**2, mean(x * y) - mx * my
        c1, c2 = 0.01**2, 0.03**2
        ssim = ((2 * mx * my + c1) * (2 * xy + c2)) / ((mx**2 + my**2 + c1) * (xx + yy + c2))
        loss = loss + dssim * ((1 - ssim) * centres).sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def assert_close(
    found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], *, rel: float = 2e-5
) -> None:
    share, gradient = (values.double().cpu() for values in found)
    assert share.shape == ()
    # A window's variances are differences, of which float32 has a few digits less.
    assert math.isclose(share.item(), expected[0].item(), rel_tol=1e-5, abs_tol=1e-12)
    largest = expected[1].abs().max().clamp_min(1e-30)
    assert (gradient - expected[1]).abs().max() <= rel * largest


@pytest.mark.parametrize(
    ("height", "width"),
    [(11, 11), (12, 40), (37, 50), (64, 11), (33, 86), (130, 172), (21, 259), (300, 17)],
)
@pytest.mark.parametrize(("l1", "dssim"), [(_L1, _DSSIM), (1.0, 0.0), (0.0, 1.0)])
def test_value_and_gradient_equal_those_of_float64(
    height: int, width: int, l1: float, dssim: float
) -> None:
    image, truth = pictures(height, width, seed=height)
    weights = {"l1_weight": l1 / image.numel(), "dssim_weight": dssim / image.numel()}
    found = gs_raster.photometric_loss(image, truth, **weights)
    whole = Rect(0, 0, width, height)
    assert_close(found, by_float64(image, truth, whole, *weights.values()))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (10, 10), (10, 300), (60, 10), (1, 700)])
def test_images_that_no_window_fits_into_have_absolute_errors_alone(
    height: int, width: int
) -> None:
    image, truth = pictures(height, width)
    found = gs_raster.photometric_loss(image, truth, l1_weight=_L1, dssim_weight=_DSSIM)
    assert_close(found, by_float64(image, truth, Rect(0, 0, width, height), _L1, 0.0))


def test_only_the_core_counts_for_absolute_errors() -> None:
    image, truth = pictures(45, 60)
    core = Rect(5, 7, 33, 40)
    found = gs_raster.photometric_loss(image, truth, l1_weight=_L1, dssim_weight=_DSSIM, core=core)
    assert_close(found, by_float64(image, truth, core, _L1, _DSSIM))
    nothing = gs_raster.photometric_loss(
        image, truth, l1_weight=_L1, dssim_weight=0.0, core=Rect(3, 3, 3, 9)
    )
    assert nothing[0] == 0
    assert nothing[1].count_nonzero() == 0


def test_a_photograph_may_be_a_rectangle_of_a_larger_one() -> None:
    image, truth = pictures(90, 120)
    part = image[20:70, 31:110].contiguous()
    whole = gs_raster.photometric_loss(
        part, truth[20:70, 31:110].contiguous(), l1_weight=_L1, dssim_weight=_DSSIM
    )
    found = gs_raster.photometric_loss(
        part, truth[20:70, 31:110], l1_weight=_L1, dssim_weight=_DSSIM
    )
    assert torch.equal(found[0], whole[0])
    assert torch.equal(found[1], whole[1])


def test_crops_add_up_to_the_view() -> None:
    height, width, halo = 100, 140, WINDOW // 2
    image, truth = pictures(height, width)
    whole, gradient = gs_raster.photometric_loss(image, truth, l1_weight=_L1, dssim_weight=_DSSIM)
    total, gradients = 0.0, torch.zeros_like(gradient)
    for x0, x1 in ((0, 61), (61, width)):
        for y0, y1 in ((0, 47), (47, height)):
            left, top = max(x0 - halo, 0), max(y0 - halo, 0)
            rows = slice(top, min(y1 + halo, height))
            columns = slice(left, min(x1 + halo, width))
            share, part = gs_raster.photometric_loss(
                image[rows, columns].contiguous(), truth[rows, columns],
                l1_weight=_L1, dssim_weight=_DSSIM,
                core=Rect(x0 - left, y0 - top, x1 - left, y1 - top),
            )  # fmt: skip
            total += share.item()
            gradients[rows, columns] += part
    assert math.isclose(total, whole.item(), rel_tol=1e-6)
    assert (gradients - gradient).abs().max() <= 2e-5 * gradient.abs().max()


@pytest.mark.parametrize(
    ("height", "width"), [(1, 700), (11, 11), (12, 40), (33, 86), (130, 172), (21, 259), (540, 960)]
)
@pytest.mark.parametrize(("l1", "dssim"), [(_L1, _DSSIM), (0.0, 1.0)])
def test_with_a_mask_value_and_gradient_equal_those_of_float64(
    height: int, width: int, l1: float, dssim: float
) -> None:
    image, truth = pictures(height, width, seed=height)
    truth = masked(truth)
    weights = {"l1_weight": l1 / image.numel(), "dssim_weight": dssim / image.numel()}
    core = Rect(width // 5, 0, width, height - height // 7)
    found = gs_raster.photometric_loss(image, truth, **weights, core=core)
    # Windows of few pixels scale rounding up: by at most 15.
    assert_close(found, masked_by_float64(image, truth, core, *weights.values()), rel=2e-4)


def test_no_bit_depends_on_what_a_mask_hides() -> None:
    image, truth = pictures(90, 120)
    truth = masked(truth)
    hidden = truth[..., 3] != 255
    other_image, other = image.clone(), truth.clone()
    other_image[hidden] = math.nan
    other[..., :3][hidden] = 77
    share, gradient = gs_raster.photometric_loss(image, truth, l1_weight=_L1, dssim_weight=_DSSIM)
    found = gs_raster.photometric_loss(other_image, other, l1_weight=_L1, dssim_weight=_DSSIM)
    assert torch.equal(found[0], share)
    assert torch.equal(found[1], gradient)
    assert not gradient[hidden].any()


def test_a_mask_that_hides_nothing_or_everything() -> None:
    image, truth = pictures(64, 100)
    states = torch.full((64, 100, 1), 255, dtype=torch.uint8, device=DEVICE)
    weights = {"l1_weight": _L1, "dssim_weight": _DSSIM}
    found = gs_raster.photometric_loss(image, torch.cat([truth, states], dim=2), **weights)
    assert_close(found, by_float64(image, truth, Rect(0, 0, 100, 64), _L1, _DSSIM))
    share, gradient = gs_raster.photometric_loss(
        image, torch.cat([truth, states // 2], dim=2), **weights
    )
    assert share == 0
    assert not gradient.any()


def test_a_photograph_with_a_mask_may_be_a_rectangle_of_a_larger_one() -> None:
    image, truth = pictures(90, 120)
    part, truth = image[20:70, 31:110].contiguous(), masked(truth)
    weights = {"l1_weight": _L1, "dssim_weight": _DSSIM}
    whole = gs_raster.photometric_loss(part, truth[20:70, 31:110].contiguous(), **weights)
    found = gs_raster.photometric_loss(part, truth[20:70, 31:110], **weights)
    assert torch.equal(found[0], whole[0])
    assert torch.equal(found[1], whole[1])


def test_large_images_and_the_same_bits_again() -> None:
    image, truth = pictures(1080, 1920)
    weights = {"l1_weight": _L1 / image.numel(), "dssim_weight": _DSSIM / image.numel()}
    found = gs_raster.photometric_loss(image, truth, **weights)
    again = gs_raster.photometric_loss(image, truth, **weights)
    assert torch.equal(found[0], again[0])
    assert torch.equal(found[1], again[1])
    assert_close(found, by_float64(image, truth, Rect(0, 0, 1920, 1080), *weights.values()))


def test_a_gradient_is_written_where_the_caller_wants_it() -> None:
    image, truth = pictures(37, 50)
    share, gradient = gs_raster.photometric_loss(image, truth, l1_weight=_L1, dssim_weight=_DSSIM)
    out = torch.full_like(image, math.nan)
    again, found = gs_raster.photometric_loss(
        image, truth, l1_weight=_L1, dssim_weight=_DSSIM, out=out
    )
    assert found is out
    assert torch.equal(found, gradient)
    assert torch.equal(again, share)
    with pytest.raises(ValueError, match=r"out must have shape \(37, 50, 3\), got \(36, 50, 3\)"):
        gs_raster.photometric_loss(image, truth, l1_weight=_L1, dssim_weight=_DSSIM, out=out[1:])


def test_an_image_without_pixels() -> None:
    share, gradient = gs_raster.photometric_loss(
        torch.empty(0, 5, 3, device=DEVICE),
        torch.empty(0, 5, 3, dtype=torch.uint8, device=DEVICE),
        l1_weight=1.0,
        dssim_weight=1.0,
    )
    assert share == 0
    assert gradient.shape == (0, 5, 3)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"image": "double"}, TypeError, "image must be float32"),
        ({"truth": "float"}, TypeError, "truth must be uint8"),
        ({"image": "flat"}, ValueError, "image must have shape"),
        ({"truth": "short"}, ValueError, r"truth must have shape \(20, 30, 3\)"),
        ({"image": "across"}, ValueError, "image must be contiguous"),
        ({"truth": "across"}, ValueError, "truth must have contiguous rows"),
        ({"core": (0, 0, 30, 20)}, TypeError, "core must be a gs_raster.Rect"),
        ({"core": Rect(0, 0, 31, 20)}, ValueError, "core must lie within 30 x 20"),
        ({"l1_weight": math.nan}, ValueError, "l1_weight must be finite"),
        ({"dssim_weight": math.inf}, ValueError, "dssim_weight must be finite"),
        ({"l1_weight": "1"}, TypeError, "l1_weight must be a number"),
    ],
)
def test_what_does_not_fit_is_refused(
    change: dict[str, object], kind: type[Exception], words: str
) -> None:
    image, truth = pictures(20, 30)
    spoiled = {
        "double": image.double(),
        "float": truth.float(),
        "flat": image.reshape(-1, 3),
        "short": truth[1:],
    }
    given: dict[str, object] = {"image": image, "truth": truth, "l1_weight": 1, "dssim_weight": 1}
    for name, how in change.items():
        across = (image if name == "image" else truth).transpose(0, 1).contiguous().transpose(0, 1)
        given[name] = across if how == "across" else spoiled.get(how, how)  # type: ignore[call-overload]
    with pytest.raises(kind, match=words):
        gs_raster.photometric_loss(**given)  # type: ignore[arg-type]
