# SPDX-License-Identifier: Apache-2.0
"""The differentiable functions against the stages, and against float64 through all of them."""

from __future__ import annotations

import pytest
import raster_oracle as oracle
import torch
from raster_device import DEVICE, assert_same_bits, bits, noise, off, sent, view_of
from raster_drawing import draw as draw_by_cpu
from torch import Tensor

import gs_raster
from gs_raster import Options, Rect
from gs_raster.torch import Image, ProjectedSplats, project, rasterize

pytestmark = pytest.mark.gpu
MODES = pytest.mark.parametrize("antialiased", [False, True], ids=["classic", "antialiased"])


def scene(seed: int, n_rows: int = 400) -> tuple[dict[str, Tensor], oracle.View]:
    view = oracle.random_view(seed, width=150, height=101)
    rows = {k: v.float() for k, v in oracle.random_rows(seed, view, n_rows=n_rows).items()}
    rows["opacities"] -= 2.0
    rows["scales"] -= 0.25
    return rows, view


def leaves_of(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: values.requires_grad_() for name, values in sent(rows).items()}


def loss_of(drawn: Image, seed: int = 0) -> Tensor:
    """Every value with its own weight."""
    parts = [drawn.image, drawn.alpha] + ([] if drawn.depth is None else [drawn.depth])
    losses = [(part * noise(*part.shape, seed=seed + i)).sum() for i, part in enumerate(parts)]
    return torch.stack(losses).sum()


def grads_of(leaves: dict[str, Tensor]) -> list[Tensor]:
    found = [leaf.grad for leaf in leaves.values()]
    assert all(grad is not None for grad in found)
    return [grad for grad in found if grad is not None]


@MODES
@pytest.mark.parametrize("sh_degree", [0, 1, 2, 3])
def test_images_and_gradients_equal_those_of_float64(sh_degree: int, antialiased: bool) -> None:
    rows, view = scene(70 + sh_degree)
    exact = {name: values.double() for name, values in rows.items()}
    with torch.no_grad():
        splats = oracle.project(exact, view, sh_degree=sh_degree, antialiased=antialiased)
        result = oracle.composite(splats, view.width, view.height)
    # Near a threshold a pixel may gain or lose a splat; where alpha nears 1, what is left of the
    # light is known to few digits, and gradients divide by it.
    clear = ((result.margin > 1e-3)[..., None] & (result.alpha < 0.99)).float()
    assert 0.15 * clear.numel() < clear.sum()

    def loss(image: Tensor, alpha: Tensor) -> Tensor:
        w_image = noise(*image.shape, seed=8).to(image) * clear.to(image)
        w_alpha = noise(*alpha.shape, seed=9).to(image) * clear.to(image)
        return (image * w_image).sum() + (alpha * w_alpha).sum()

    how = {"sh_degree": sh_degree, "antialiased": antialiased}
    expected = draw_by_cpu(exact, view, loss=loss, absgrad=True, **how)
    leaves = leaves_of(rows)
    projected = project(
        leaves, view_of(view), sh_degree=sh_degree, options=Options(antialiased=antialiased)
    )
    projected.means2d.retain_grad()
    drawn = rasterize(projected, absgrad=True)
    loss(drawn.image, drawn.alpha).backward()
    difference = (drawn.image.double().cpu() - expected["image"]).abs() * clear
    assert difference.max() < 3e-5 * expected["image"].max()
    for name, leaf in leaves.items():
        if name == "shN" and sh_degree == 0:
            assert leaf.grad is not None
            assert leaf.grad.count_nonzero() == 0
            continue
        assert leaf.grad is not None
        assert off(leaf.grad, expected[f"grad {name}"]) < 2e-4, name
    assert projected.means2d.grad is not None
    assert off(projected.means2d.grad, expected["grad means2d"]) < 2e-4
    assert off(projected.absgrad, expected["absgrad"]) < 2e-4


def test_gradients_are_those_of_the_stages_bit_for_bit() -> None:
    rows, view = scene(80)
    leaves, camera = leaves_of(rows), view_of(view)
    projected = project(leaves, camera, sh_degree=3, radii=True)
    drawn = rasterize(projected, depth=True, absgrad=True)
    loss_of(drawn).backward()

    on_device = gs_raster.Rows.of(sent(rows))
    splats = gs_raster.project(on_device, camera, sh_degree=3, radii=True)
    lists = gs_raster.sort(splats)
    pixels = gs_raster.blend(splats, lists, depth=True)
    shape = pixels.alpha.shape
    grads = noise(*shape, 3), noise(*shape, 1, seed=1)[..., 0], noise(*shape, 1, seed=2)[..., 0]
    gradients = gs_raster.blend_backward(
        splats, lists, pixels, *(grad.contiguous() for grad in grads), absgrad=True
    )
    found = gs_raster.project_backward(on_device, camera, splats, gradients, sh_degree=3)
    assert_same_bits(bits(projected.records, projected.radii), bits(splats.records, splats.radii))
    assert_same_bits(bits(drawn.image), bits(pixels.image))
    assert_same_bits(bits(*grads_of(leaves)), bits(*found.columns.values()))
    assert_same_bits(bits(projected.absgrad), bits(gradients[:, 10:12]))


def test_rectangles_share_one_projection_and_their_gradients_add_up() -> None:
    rows, view = scene(81)
    camera = view_of(view)
    rects = [Rect(0, 0, 71, 101), Rect(71, 0, 150, 43), Rect(71, 43, 150, 101)]
    weight = noise(view.height, view.width, 3)

    def run(parts: list[Rect]) -> tuple[ProjectedSplats, list[Tensor]]:
        leaves = leaves_of(rows)
        projected = project(leaves, camera, sh_degree=3)
        projected.means2d.retain_grad()
        for rect in parts:  # one backward pass each, as a trainer does
            drawn = rasterize(projected, rect, absgrad=True)
            of_image = weight[rect.y0 : rect.y1, rect.x0 : rect.x1]
            drawn.image.backward(of_image, retain_graph=rect is not parts[-1])
        return projected, grads_of(leaves)

    whole, expected = run([camera.rect])
    shared, found = run(rects)
    for a, b in zip(found, expected, strict=True):
        assert off(a, b) < 1e-4
    assert shared.means2d.grad is not None
    assert whole.means2d.grad is not None
    assert off(shared.means2d.grad, whole.means2d.grad) < 1e-4
    assert off(shared.absgrad, whole.absgrad) < 1e-5
    # The same in one backward pass: the gradients of three rectangles meet in the splats.
    leaves = leaves_of(rows)
    projected = project(leaves, camera, sh_degree=3)
    images = [rasterize(projected, rect, absgrad=True).image for rect in rects]
    torch.autograd.backward(images, [weight[r.y0 : r.y1, r.x0 : r.x1].contiguous() for r in rects])
    for a, b in zip(grads_of(leaves), expected, strict=True):
        assert off(a, b) < 1e-4
    assert off(projected.absgrad, whole.absgrad) < 1e-5


def test_a_replaced_field_is_drawn_and_gets_its_gradient() -> None:
    rows, view = scene(82)
    camera = view_of(view)
    projected = project(sent(rows), camera, sh_degree=0)
    expected = rasterize(projected)
    colors = noise(len(rows["means"]), 3).requires_grad_()
    projected.colors = colors
    drawn = rasterize(projected)
    assert torch.equal(drawn.alpha, expected.alpha)
    assert not torch.equal(drawn.image, expected.image)
    weight = noise(*drawn.image.shape)
    (drawn.image * weight).sum().backward()
    # The image is linear in the colours.
    assert colors.grad is not None
    torch.testing.assert_close(
        (colors.detach() * colors.grad).sum(), (drawn.image.detach() * weight).sum(),
        rtol=1e-3, atol=1e-3,
    )  # fmt: skip


def test_gradients_of_a_background() -> None:
    rows, view = scene(83)
    background = torch.tensor([0.1, 0.6, 0.3], device=DEVICE, requires_grad=True)
    drawn = rasterize(project(sent(rows), view_of(view), sh_degree=0), background=background)
    weight = noise(*drawn.image.shape)
    (drawn.image * weight).sum().backward()
    expected = ((1 - drawn.alpha) * weight).sum((0, 1))
    torch.testing.assert_close(background.grad, expected, rtol=1e-4, atol=1e-3)


def test_only_what_needs_a_gradient_gets_one() -> None:
    rows, view = scene(84)
    on_device = sent(rows)
    on_device["sh0"].requires_grad_()
    drawn = rasterize(project(on_device, view_of(view), sh_degree=3))
    loss_of(drawn).backward()
    assert on_device["sh0"].grad is not None
    assert on_device["sh0"].grad.count_nonzero() > 0
    assert all(v.grad is None for name, v in on_device.items() if name != "sh0")
    with torch.no_grad():
        assert not rasterize(project(on_device, view_of(view), sh_degree=3)).image.requires_grad


def test_a_graph_is_freed_with_its_image() -> None:
    rows, view = scene(85)
    leaves, camera = leaves_of(rows), view_of(view)

    def run() -> None:
        projected = project(leaves, camera, sh_degree=3, radii=True)
        loss_of(rasterize(projected, depth=True, absgrad=True)).backward()

    run()
    before = torch.cuda.memory_allocated()
    import gc

    gc.disable()  # a cycle would keep memory until it runs
    try:
        for _ in range(3):
            run()
        assert torch.cuda.memory_allocated() == before
    finally:
        gc.enable()


def test_torchs_defaults_of_device_and_dtype_change_nothing() -> None:
    rows, view = scene(88)

    def run() -> list[Tensor]:
        projected = project(leaves_of(rows), view_of(view), sh_degree=1)
        drawn = rasterize(projected, absgrad=True)
        weight = torch.ones_like(drawn.image)
        (drawn.image * weight).sum().backward()
        return [drawn.image, projected.absgrad]

    expected = run()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device(DEVICE)
    try:
        on_device = {name: values.to(DEVICE) for name, values in rows.items()}
        camera = gs_raster.View(
            view.viewmat.to(DEVICE, torch.float32), view.K.to(DEVICE, torch.float32),
            view.width, view.height,
        )  # fmt: skip
        leaves = {name: values.requires_grad_() for name, values in on_device.items()}
        projected = project(leaves, camera, sh_degree=1)
        drawn = rasterize(projected, absgrad=True)
        drawn.image.sum().backward()
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert_same_bits(bits(drawn.image, projected.absgrad), bits(*expected))


def test_absgrad_that_was_not_asked_for_is_refused() -> None:
    rows, view = scene(86)
    projected = project(leaves_of(rows), view_of(view), sh_degree=0)
    loss_of(rasterize(projected)).backward()
    with pytest.raises(ValueError, match=r"absgrad must be asked of rasterize\(\)"):
        _ = projected.absgrad


def test_gradients_of_gradients_are_refused() -> None:
    rows, view = scene(87)
    leaves = leaves_of(rows)
    drawn = rasterize(project(leaves, view_of(view), sh_degree=0))
    (grad,) = torch.autograd.grad(drawn.image.square().sum(), leaves["sh0"], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
