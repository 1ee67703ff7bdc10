# SPDX-License-Identifier: Apache-2.0
"""Depths that a GPU draws, and gradients of their loss, against the CPU in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from random_scenes import leaves, random_rows, random_view
from torch import Tensor

from gs_train.losses.depth import add_depth
from gs_train.losses.loss import Crop
from gs_train.losses.mask import IGNORED, KEPT
from gs_train.renderers import (
    InverseDepth,
    MetricDepth,
    RenderOptions,
    View,
    make_renderer,
    with_depths,
)
from gs_train.renderers.protocol import ATTRIBUTES, Rect
from gs_train.renderers.raster import RasterRenderer
from gs_train.renderers.tables import TableRows

pytestmark = pytest.mark.gpu

OF = InverseDepth(2.0, -0.1)
WIDTH, HEIGHT = 130, 75
GPU = ["raster", "gsplat"]


def scene(seed: int) -> tuple[dict[str, Tensor], View, Tensor]:
    """float64 rows, a view of them and a photograph with a mask and a depth map."""
    view = dataclasses.replace(random_view(seed, WIDTH, HEIGHT), inverse_depth=OF)
    draw = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, 256, (HEIGHT, WIDTH, 6), generator=draw, dtype=torch.uint8)
    hidden = torch.rand((HEIGHT, WIDTH), generator=draw) < 0.2
    truth[..., 3] = torch.where(hidden, IGNORED, KEPT)
    return random_rows(seed, view, n_rows=200, n_bases=3), view, truth


def loss_of(
    name: str, rows: dict[str, Tensor], view: View, truth: Tensor, rect: Rect
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The sum of depths, the loss, and gradients of the rows that it leaves, on the CPU."""
    draws = with_depths(make_renderer(name, RenderOptions()))
    on_cpu = name == "cpu"
    held = leaves(rows, torch.float64 if on_cpu else torch.float32)
    if not on_cpu:
        held = {k: v.detach().cuda().requires_grad_() for k, v in held.items()}
        view = dataclasses.replace(view, viewmat=view.viewmat.float(), K=view.K.float()).to("cuda")
        truth = truth.cuda()
    image, alpha, depth = draws.rasterize_with_depth(draws.project(held, view, sh_degree=1), rect)
    assert image.shape == (rect.height, rect.width, 3)
    assert depth.shape == alpha.shape == (rect.height, rect.width, 1)
    crop = Crop(view, rect)
    core = crop.rect
    if core == rect:
        there = truth[rect.y0 : rect.y1, rect.x0 : rect.x1]
        nothing = torch.zeros((), dtype=alpha.dtype, device=alpha.device)
        share, *slopes = add_depth(
            nothing, alpha[..., 0], depth[..., 0], there, crop, OF, weight=100.0
        )
        torch.autograd.backward([alpha, depth], [slope[..., None] for slope in slopes])
    else:
        share = depth.detach().sum()
    gradients = {k: v.grad.cpu().double() for k, v in held.items() if v.grad is not None}
    return depth.detach().cpu().double(), share.cpu().double(), gradients


@pytest.mark.parametrize("name", GPU)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_depths_their_loss_and_gradients_are_those_of_the_cpu(name: str, seed: int) -> None:
    rows, view, truth = scene(seed)
    depth, share, gradients = loss_of("cpu", rows, view, truth, view.rect)
    found_depth, found, found_gradients = loss_of(name, rows, view, truth, view.rect)
    # Single pixels may take or leave a splat at an alpha of 1 / 255.
    apart = ~torch.isclose(found_depth, depth, rtol=1e-4, atol=1e-4)
    assert apart.double().mean() < 0.002
    assert found.item() == pytest.approx(share.item(), rel=1e-4)
    for attribute in ("means", "scales", "quats", "opacities"):
        expected = gradients[attribute]
        error = (found_gradients[attribute] - expected).norm() / expected.norm()
        assert error < 5e-3, attribute


@pytest.mark.parametrize("seed", [0, 1])
def test_rows_drawn_where_they_lie_have_the_same_depths_and_gradients(seed: int) -> None:
    """By gs-raster, to the bit of what it draws from copies."""
    rows, view, truth = scene(seed)
    rows = {name: rows[name].float().cuda() for name in ATTRIBUTES}
    view = dataclasses.replace(view, viewmat=view.viewmat.float(), K=view.K.float()).to("cuda")
    crop, truth = Crop(view, view.rect), truth.cuda()
    renderer = RasterRenderer()
    n = len(rows["means"])
    keys = torch.arange(n, dtype=torch.int32, device="cuda")

    held = leaves(rows, torch.float32)
    splats = renderer.project(held, view, sh_degree=1, keys=keys)
    image, alpha, depth = renderer.rasterize_with_depth(splats)
    nothing = torch.zeros((), device="cuda")
    share, of_alpha, of_depth = add_depth(
        nothing, alpha[..., 0], depth[..., 0], truth, crop, OF, weight=100.0
    )
    of_image = torch.ones_like(image)
    torch.autograd.backward(
        [image, alpha, depth], [of_image, of_alpha[..., None], of_depth[..., None]]
    )

    sums = {name: torch.zeros_like(values) for name, values in rows.items()}
    renderer.tables.begin(1)
    listed = TableRows(rows, keys, keys.clone(), keys.clone(), sums, keys.clone())
    drawn = renderer.tables.draw(
        listed, view, view.rect, sh_degree=1, room=1 << 20, index=0, depth=True
    )
    assert drawn.depth is not None
    assert torch.equal(drawn.depth, depth[..., 0])
    again = add_depth(nothing, drawn.alpha, drawn.depth, truth, crop, OF, weight=100.0)
    assert again[0].item() == pytest.approx(share.item(), rel=1e-5)
    # The alpha of both ways is one less the transmittance; gradients are the same from there on.
    renderer.tables.send_back(drawn, of_image, None, of_alpha, of_depth)
    for name, sum_ in sums.items():
        gradient = held[name].grad
        assert gradient is not None
        torch.testing.assert_close(sum_, gradient, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", GPU)
def test_a_rectangle_has_the_depths_of_the_view(name: str) -> None:
    rows, view, truth = scene(3)
    whole, _, _ = loss_of(name, rows, view, truth, view.rect)
    for rect in (Rect(0, 0, 64, 40), Rect(48, 33, WIDTH, HEIGHT)):
        part, _, _ = loss_of(name, rows, view, truth, rect)
        inside = whole[rect.y0 : rect.y1, rect.x0 : rect.x1]
        apart = ~torch.isclose(part, inside, rtol=1e-4, atol=1e-4)
        assert apart.double().mean() < 0.002


def test_a_metric_map_and_its_holes_have_the_loss_of_the_cpu() -> None:
    _, view, truth = scene(4)
    truth[20:40, 30:60, 4:] = 0  # unknown
    draw = torch.Generator().manual_seed(4)
    alpha, depth = torch.rand((2, HEIGHT, WIDTH), generator=draw)
    alpha[:9], depth[:9] = 0.0, 0.0
    crop, of = Crop(view, view.rect), MetricDepth(1e-4)
    expected = add_depth(torch.zeros(()), alpha, depth, truth, crop, of, weight=100.0)
    on_gpu = (values.cuda() for values in (torch.zeros(()), alpha, depth, truth))
    found = add_depth(*on_gpu, crop, of, weight=100.0)
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=1e-9)
