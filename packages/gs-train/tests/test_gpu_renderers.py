# SPDX-License-Identifier: Apache-2.0
"""The CPU renderer and those of a GPU against each other and against gsplat.rasterization.

Bounds. Both sides compute in float32: pixels agree to about 1e-5 of the largest colour. CUDA uses
fast exp and log, so comparisons near a threshold (alpha at 1/255, transmittance at 1e-4) and the
rounding up of extents may tip over: pixels whose closest comparison, in float64, is within 1e-3 of
its threshold are counted and left out of images and losses. CUDA's backward pass recovers a pixel's
transmittance as 1 - alpha, which at the smallest transmittance of 1e-4 is off by 6e-8 / 1e-4 =
6e-4, and with it every gradient of that pixel; where alpha is below 0.99 it is off by 6e-6. So
gradients are compared twice: over pixels below 0.99 tightly, over all pixels loosely. The order of
CUDA's atomic additions changes from run to run, by some 1e-6 of a gradient's norm.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gs_raster import types
from gs_train.renderers import (
    Rect,
    Renderer,
    RenderOptions,
    Splats,
    TooManyIntersectionsError,
    View,
)
from gs_train.renderers.cpu import CpuRenderer
from gs_train.renderers.gsplat import GsplatRenderer
from gs_train.renderers.raster import RasterRenderer

sys.path.insert(0, str(Path(__file__).parent))
import random_scenes as scenes

pytestmark = pytest.mark.gpu
MODES = pytest.mark.parametrize("antialiased", [False, True], ids=["classic", "antialiased"])
KINDS = pytest.mark.parametrize("kind", [RasterRenderer, GsplatRenderer], ids=["raster", "gsplat"])
PIXEL_BOUND = 3e-5
TIGHT, LOOSE = 2e-4, 3e-3


@dataclass
class Scene:
    """float32 rows and view on the CPU; clear (h, w, 1) where no comparison is near tipping,
    translucent (h, w, 1) where besides alpha is below 0.99."""

    rows: dict[str, Tensor]
    view: View
    clear: Tensor
    translucent: Tensor


def make_scene(seed: int, sh_degree: int, antialiased: bool) -> Scene:
    view = scenes.random_view(seed, width=150, height=101)
    rows = {k: v.float() for k, v in scenes.random_rows(seed, view, n_rows=400).items()}
    # Fainter and smaller than on the CPU's tests, which leaves part of the image translucent.
    rows["opacities"] -= 2.0
    rows["scales"] -= 0.25
    view = View(view.name, view.viewmat.float(), view.K.float(), view.width, view.height)
    exact = CpuRenderer(RenderOptions(antialiased=antialiased))
    splats = exact.project({k: v.double() for k, v in rows.items()}, view, sh_degree=sh_degree)
    alpha, margin = alpha_and_margin(splats)
    clear = (margin > 1e-3)[..., None]
    assert (~clear).sum() < 0.05 * clear.numel(), "too few pixels left to compare"
    translucent = clear & (alpha < 0.99)
    assert translucent.sum() > 0.15 * clear.numel()
    return Scene(rows, view, clear, translucent)


def alpha_and_margin(splats: Splats) -> tuple[Tensor, Tensor]:
    """alpha (h, w, 1), and (h, w) how far, relatively, the closest comparison of an alpha or a
    transmittance with its threshold was from tipping over."""
    y = torch.arange(splats.view.height, dtype=torch.float64)[:, None] + 0.5
    x = torch.arange(splats.view.width, dtype=torch.float64)[None, :] + 0.5
    T = torch.ones(len(y), x.shape[1], dtype=torch.float64)
    finished, margin = T < 0, torch.full_like(T, torch.inf)
    shown = (splats.radii > 0).all(-1).nonzero()[:, 0]
    for i in shown[splats.depths[shown].argsort(stable=True)].tolist():
        dx, dy = splats.means2d[i, 0] - x, splats.means2d[i, 1] - y
        a, b, c = splats.conics[i]
        sigma = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
        alpha = (splats.opacities[i] * (-sigma).exp()).clamp_max(0.999)
        seen = ~finished & (sigma >= 0) & (alpha >= 1.0 / 255.0)
        after = T * (1.0 - alpha)
        margin = margin.minimum(torch.where(finished, torch.inf, (255.0 * alpha - 1.0).abs()))
        margin = margin.minimum(torch.where(seen, (1e4 * after - 1.0).abs(), torch.inf))
        T = torch.where(seen & (after > 1e-4), after, T)
        finished = finished | (seen & (after <= 1e-4))
    return (1.0 - T)[..., None], margin


@dataclass
class Result:
    image: Tensor
    alpha: Tensor
    radii: Tensor
    grads: dict[str, Tensor]


def loss_of(image: Tensor, alpha: Tensor, mask: Tensor) -> Tensor:
    g = torch.Generator().manual_seed(1)
    w_image = torch.randn(mask.shape[0], mask.shape[1], 3, generator=g) * mask
    w_alpha = torch.randn(mask.shape, generator=g) * mask
    return (image * w_image.to(image.device)).sum() + (alpha * w_alpha.to(image.device)).sum()


def run(
    renderer: Renderer, scene: Scene, mask: Tensor, sh_degree: int, rects: list[Rect] | None = None
) -> Result:
    """Render and differentiate, whole or as crops that tile the view; everything on the CPU."""
    leaves = {
        k: v.detach().clone().to(renderer.device).requires_grad_() for k, v in scene.rows.items()
    }
    splats = renderer.project(leaves, scene.view.to(renderer.device), sh_degree=sh_degree)
    splats.means2d.retain_grad()
    shape = scene.view.height, scene.view.width
    image = torch.zeros(*shape, 3, device=renderer.device)
    alpha = torch.zeros(*shape, 1, device=renderer.device)
    for r in rects or [scene.view.rect]:
        part, part_alpha = renderer.rasterize(splats, r)
        image[r.y0 : r.y1, r.x0 : r.x1] = part
        alpha[r.y0 : r.y1, r.x0 : r.x1] = part_alpha
    loss_of(image, alpha, mask).backward()
    grads = {k: v.grad.cpu() for k, v in leaves.items()}
    grads["means2d"] = splats.means2d.grad.cpu().reshape(-1, 2)
    grads["absgrad"] = splats.absgrad.cpu()
    return Result(image.detach().cpu(), alpha.detach().cpu(), splats.radii.cpu(), grads)


def make_both(
    kind: type[GsplatRenderer | RasterRenderer], antialiased: bool, **options: float
) -> tuple[CpuRenderer, GsplatRenderer | RasterRenderer]:
    both = RenderOptions(antialiased=antialiased, **options)
    return CpuRenderer(both, absgrad=True), kind(both, device="cuda", absgrad=True)


def assert_same_pixels(found: Result, expected: Result, clear: Tensor) -> None:
    scale = expected.image.max().item()
    assert scale > 0.5
    assert ((found.image - expected.image).abs() * clear).max() < PIXEL_BOUND * scale
    assert ((found.alpha - expected.alpha).abs() * clear).max() < PIXEL_BOUND


def assert_same_grads(found: Result, expected: Result, bound: float) -> None:
    """Norm of the difference over the norm, and no element off by more than bound of the largest
    plus ten times the bound of itself."""
    for name, grad in expected.grads.items():
        difference = (found.grads[name] - grad).abs()
        if name == "shN" and grad.count_nonzero() == 0:
            assert difference.count_nonzero() == 0
            continue
        assert grad.norm() > 0, name
        relative = (difference.norm() / grad.norm()).item()
        assert relative < bound, f"{name}: {relative:.2g}"
        excess = difference - bound * (10 * grad.abs() + grad.abs().max())
        assert excess.max() <= 0, f"{name}: an element is off by {difference.max().item():.2g}"


@KINDS
@MODES
@pytest.mark.parametrize(("seed", "sh_degree"), [(40, 0), (41, 1), (42, 2), (43, 3)])
def test_cpu_and_gpu_renderers_agree(seed, sh_degree, antialiased, kind):
    scene = make_scene(seed, sh_degree, antialiased)
    cpu, gpu = make_both(kind, antialiased)
    for mask, bound in ((scene.translucent, TIGHT), (scene.clear, LOOSE)):
        expected = run(gpu, scene, mask, sh_degree)
        found = run(cpu, scene, mask, sh_degree)
        assert_same_pixels(found, expected, scene.clear)
        assert_same_grads(found, expected, bound)


@KINDS
@MODES
def test_extents_agree_up_to_rounding(antialiased, kind):
    scene = make_scene(42, 0, antialiased)
    cpu, gpu = make_both(kind, antialiased)
    found = run(cpu, scene, scene.clear, 0).radii
    expected = run(gpu, scene, scene.clear, 0).radii
    # A radius is a ceiling: where it is close to an integer, fast log takes it one further or less.
    assert ((found > 0) != (expected > 0)).sum() <= 2
    both = (found > 0).all(1) & (expected > 0).all(1)
    assert both.sum() > 100
    off = (found - expected).abs()[both]
    assert off.max() <= 1
    assert (off > 0).sum() <= 4


@KINDS
@MODES
def test_crops_agree_with_the_other_renderers_whole_image(antialiased, kind):
    scene = make_scene(45, 3, antialiased)
    cpu, gpu = make_both(kind, antialiased)
    # Columns and rows that do not fall on tiles.
    rects = [Rect(0, 0, 71, 101), Rect(71, 0, 150, 43), Rect(71, 43, 150, 101)]
    for one, other in ((cpu, gpu), (gpu, cpu)):
        expected = run(one, scene, scene.translucent, 3)
        found = run(other, scene, scene.translucent, 3, rects)
        assert_same_pixels(found, expected, scene.clear)
        assert_same_grads(found, expected, TIGHT)


@KINDS
@MODES
def test_options_mean_the_same_to_both(antialiased, kind):
    scene = make_scene(46, 1, antialiased)
    cpu, gpu = make_both(kind, antialiased, near=1.0, far=5.0, radius_clip=4.0, eps2d=0.5)
    found = run(cpu, scene, scene.translucent, 1)
    expected = run(gpu, scene, scene.translucent, 1)
    plain = run(make_both(kind, antialiased)[0], scene, scene.translucent, 1)
    assert 0 < (found.radii > 0).sum() < (plain.radii > 0).sum()
    # Thresholds of the changed picture are elsewhere: nearly all pixels agree.
    off = (found.image - expected.image).abs().amax(-1) > PIXEL_BOUND * expected.image.max()
    assert off.sum() < 0.01 * off.numel()


@KINDS
@MODES
def test_both_renderers_agree_with_gsplats_own_rasterization(antialiased, kind):
    from gsplat import rasterization

    scene = make_scene(47, 3, antialiased)
    leaves = {k: v.cuda().requires_grad_() for k, v in scene.rows.items()}
    view = scene.view.to("cuda")
    images, alphas, info = rasterization(
        leaves["means"],
        leaves["quats"],
        leaves["scales"].exp(),
        leaves["opacities"].sigmoid(),
        torch.cat([leaves["sh0"], leaves["shN"]], 1),
        view.viewmat[None],
        view.K[None],
        view.width,
        view.height,
        sh_degree=3,
        packed=False,
        absgrad=True,
        rasterize_mode="antialiased" if antialiased else "classic",
    )
    info["means2d"].retain_grad()
    loss_of(images[0], alphas[0], scene.translucent).backward()
    grads = {k: v.grad.cpu() for k, v in leaves.items()}
    grads["means2d"] = info["means2d"].grad.cpu().reshape(-1, 2)
    grads["absgrad"] = info["means2d"].absgrad.cpu().reshape(-1, 2)
    radii = info["radii"][0].cpu()
    expected = Result(images[0].detach().cpu(), alphas[0].detach().cpu(), radii, grads)
    for renderer in make_both(kind, antialiased):
        found = run(renderer, scene, scene.translucent, 3)
        assert_same_pixels(found, expected, scene.clear)
        assert_same_grads(found, expected, TIGHT)


@KINDS
def test_a_rectangle_of_too_many_intersections_is_refused(kind, monkeypatch):
    scene = make_scene(20, 0, antialiased=False)
    renderer = kind()
    rows = {name: values.cuda() for name, values in scene.rows.items()}
    splats = renderer.project(rows, scene.view.to("cuda"), sh_degree=0)
    monkeypatch.setattr(types, "MAX_INSTANCES", 100)
    with pytest.raises(TooManyIntersectionsError, match=r"at most 100 tiles in all, got \d"):
        renderer.rasterize(splats)


@KINDS
def test_no_visible_row_gives_black_on_both(kind):
    scene = make_scene(48, 0, False)
    hidden = {**scene.rows, "opacities": torch.full_like(scene.rows["opacities"], -8.0)}
    for renderer in make_both(kind, False):
        rows = {k: v.to(renderer.device) for k, v in hidden.items()}
        splats = renderer.project(rows, scene.view.to(renderer.device), sh_degree=0)
        image, alpha = renderer.rasterize(splats)
        assert image.count_nonzero() == 0
        assert alpha.count_nonzero() == 0


@MODES
def test_raster_gives_the_same_bits_again_and_from_crops(antialiased):
    scene = make_scene(49, 3, antialiased)
    renderer = RasterRenderer(RenderOptions(antialiased=antialiased), absgrad=True)
    first, second = (run(renderer, scene, scene.clear, 3) for _ in range(2))
    assert torch.equal(second.image, first.image)
    for name, grad in first.grads.items():
        assert torch.equal(second.grads[name], grad), name
    rects = [Rect(0, 0, 71, 101), Rect(71, 0, 150, 43), Rect(71, 43, 150, 101)]
    crops = run(renderer, scene, scene.clear, 3, rects)
    assert torch.equal(crops.image, first.image)
    assert torch.equal(crops.alpha, first.alpha)


def test_raster_blends_equal_depths_by_key():
    scene = make_scene(50, 0, antialiased=False)
    rows = {name: values.clone().cuda() for name, values in scene.rows.items()}
    rows["means"][1::2] = rows["means"][::2]  # pairs at one place
    n = len(rows["means"])
    keys = torch.randperm(n, generator=torch.Generator().manual_seed(0)).int().cuda()
    shuffle = torch.randperm(n, generator=torch.Generator().manual_seed(1)).cuda()
    renderer, view = RasterRenderer(), scene.view.to("cuda")
    image, _ = renderer.rasterize(renderer.project(rows, view, sh_degree=0, keys=keys))
    moved = {name: values[shuffle] for name, values in rows.items()}
    again, _ = renderer.rasterize(renderer.project(moved, view, sh_degree=0, keys=keys[shuffle]))
    assert torch.equal(again, image)


def test_raster_refuses_the_splats_of_another_renderer():
    scene = make_scene(51, 0, antialiased=False)
    splats = CpuRenderer().project(scene.rows, scene.view, sh_degree=0)
    with pytest.raises(TypeError, match=r"must come from RasterRenderer\.project, got Splats"):
        RasterRenderer().rasterize(splats)


def test_raster_counts_what_its_rectangles_draw():
    scene = make_scene(52, 0, antialiased=False)
    renderer = RasterRenderer()
    rows = {name: values.cuda() for name, values in scene.rows.items()}
    splats = renderer.project(rows, scene.view.to("cuda"), sh_degree=0)
    assert splats.n_intersections == 0
    renderer.rasterize(splats)
    whole = splats.n_intersections
    assert whole > len(rows["means"]) / 2
    renderer.rasterize(splats, Rect(0, 0, 16, 16))
    assert whole < splats.n_intersections < 2 * whole
