# SPDX-License-Identifier: Apache-2.0
"""The CPU renderer: gs-raster's stages through torch's autograd."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gs_raster import Options, cpu, types
from gs_train.renderers import TooManyIntersectionsError
from gs_train.renderers.cpu import CpuRenderer
from gs_train.renderers.protocol import Rect, RenderOptions, View

sys.path.insert(0, str(Path(__file__).parent))
import random_scenes as scenes

VIEW = scenes.random_view(50, width=150, height=101)
ROWS = {k: v.float() for k, v in scenes.random_rows(50, VIEW, n_rows=600).items()}
MODES = pytest.mark.parametrize("antialiased", [False, True], ids=["classic", "antialiased"])


def render(
    rows: dict[str, Tensor],
    view: View = VIEW,
    rect: Rect | None = None,
    *,
    sh_degree: int = 3,
    absgrad: bool = False,
    **options,
) -> dict[str, Tensor]:
    """Image, alpha, the six gradients of an arbitrary loss, radii and, if asked for, absgrad."""
    leaves = scenes.leaves(rows, rows["means"].dtype)
    renderer = CpuRenderer(RenderOptions(**options), absgrad=absgrad)
    splats = renderer.project(leaves, view, sh_degree=sh_degree)
    image, alpha = renderer.rasterize(splats, rect)
    (image.square().sum() + (image[..., 0] * alpha[..., 0]).sum()).backward()
    results = {"image": image.detach(), "alpha": alpha.detach(), "radii": splats.radii}
    results |= {f"grad {k}": v.grad for k, v in leaves.items()}
    if absgrad:
        results["absgrad"] = splats.absgrad
    return results


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@MODES
def test_gradients_pass_gradcheck(antialiased):
    view = scenes.random_view(7, width=9, height=8)
    g = torch.Generator().manual_seed(3)
    camera = torch.tensor([[0.1, -0.1, 2.0], [-0.2, 0.1, 2.5], [0.1, 0.2, 3.0]]).double()
    # Broad enough that alpha is above its threshold in every pixel: no jumps.
    rows = {
        "means": (camera - view.viewmat[:3, 3]) @ view.viewmat[:3, :3],
        "scales": -0.5 + 0.2 * torch.randn(3, 3, generator=g, dtype=torch.float64),
        "quats": torch.randn(3, 4, generator=g, dtype=torch.float64),
        "opacities": torch.tensor([-0.5, 0.3, 0.8]).double(),
        "sh0": torch.randn(3, 1, 3, generator=g, dtype=torch.float64).abs(),
        "shN": 0.1 * torch.randn(3, 15, 3, generator=g, dtype=torch.float64),
    }
    renderer = CpuRenderer(RenderOptions(antialiased=antialiased))

    def render(*values: Tensor) -> tuple[Tensor, Tensor]:
        splats = renderer.project(dict(zip(scenes.ATTRIBUTES, values)), view, sh_degree=3)
        return renderer.rasterize(splats)

    inputs = [v.requires_grad_() for v in rows.values()]
    # The guard in the compensation's gradient is 1e-6 by itself.
    assert torch.autograd.gradcheck(render, inputs, eps=1e-5, rtol=1e-4, atol=1e-6)


@MODES
def test_images_and_gradients_are_those_of_the_stages(antialiased):
    found = render(ROWS, antialiased=antialiased, absgrad=True)
    rows = cpu.Rows(*(ROWS[name].numpy() for name in scenes.ATTRIBUTES))
    camera = cpu.Camera.of(VIEW.viewmat.numpy(), VIEW.K.numpy(), VIEW.width, VIEW.height)
    how = {"sh_degree": 3, "options": Options(antialiased=antialiased)}
    splats = cpu.project(rows, camera, **how)
    blended = cpu.blend(splats, cpu.sort(splats, VIEW.rect))
    grad_image = 2 * blended.image
    grad_image[..., 0] += blended.alpha[..., 0]
    grads = cpu.blend_backward(blended, grad_image, blended.image[..., :1], absgrad=True)
    expected = cpu.project_backward(rows, camera, grads, radii=splats.radii, **how)
    assert np.array_equal(found["image"].numpy(), blended.image)
    assert np.array_equal(found["absgrad"].numpy(), grads.absgrad)
    for name, grad in expected._asdict().items():
        assert np.array_equal(found[f"grad {name}"].numpy(), grad), name


def test_gradients_of_single_outputs_add_up_to_the_gradient_of_all():
    outputs = ("means2d", "conics", "depths", "opacities", "colors")

    def gradients(*names: str) -> dict[str, Tensor]:
        leaves = scenes.leaves(ROWS, torch.float64)
        splats = CpuRenderer().project(leaves, VIEW, sh_degree=3)
        torch.autograd.backward([getattr(splats, name).square().sum() for name in names])
        return {name: leaf.grad for name, leaf in leaves.items()}

    alone = [gradients(name) for name in outputs]
    for name, grad in gradients(*outputs).items():
        total = torch.stack([each[name] for each in alone]).sum(0)
        floor = 1e-12 * grad.abs().max().item()
        torch.testing.assert_close(total, grad, rtol=1e-9, atol=floor)


@pytest.fixture
def set_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_any_number_of_threads_gives_the_same_bits(set_threads):
    set_threads(1)
    expected = render(ROWS, absgrad=True)
    assert expected["image"].max() > 0.5
    for n_threads in (2, 3, 5):
        set_threads(n_threads)
        assert_same_bits(render(ROWS, absgrad=True), expected)


def test_a_second_run_gives_the_same_bits():
    assert_same_bits(render(ROWS, antialiased=True), render(ROWS, antialiased=True))


def test_importing_the_renderers_does_not_import_numba():
    source = (
        "import sys, gs_train.renderers, gs_train.renderers.protocol\n"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", source], check=True, timeout=600)


def test_gradients_of_crops_add_up_to_those_of_the_whole_image():
    rows = {k: v.double() for k, v in ROWS.items()}
    whole = scenes.leaves(rows, torch.float64)
    parts = scenes.leaves(rows, torch.float64)
    renderer = CpuRenderer(absgrad=True)
    splats = renderer.project(whole, VIEW, sh_degree=3)
    renderer.rasterize(splats)[0].square().sum().backward()
    cropped = renderer.project(parts, VIEW, sh_degree=3)
    cropped.means2d.retain_grad()
    loss = torch.zeros((), dtype=torch.float64)
    for rect in (Rect(0, 0, 71, 101), Rect(71, 0, 150, 40), Rect(71, 40, 150, 101)):
        loss = loss + renderer.rasterize(cropped, rect)[0].square().sum()
    loss.backward()
    assert len(cropped.shifted) == 3
    # The same numbers in another order of addition.
    torch.testing.assert_close(cropped.absgrad, splats.absgrad, rtol=1e-10, atol=1e-11)
    assert cropped.means2d.grad.shape == (600, 2)
    for name in scenes.ATTRIBUTES:
        grad = whole[name].grad
        torch.testing.assert_close(
            parts[name].grad, grad, rtol=1e-8, atol=1e-10 * grad.abs().max().item()
        )


def test_a_rectangle_of_too_many_intersections_is_refused_and_its_halves_are_not(monkeypatch):
    splats = CpuRenderer().project(ROWS, VIEW, sh_degree=0)
    left, right = Rect(0, 0, 75, 101), Rect(75, 0, 150, 101)
    monkeypatch.setattr(types, "MAX_INSTANCES", 5_000)
    with pytest.raises(TooManyIntersectionsError, match=r"at most 5,000 tiles in all, got \d,\d+;"):
        CpuRenderer().rasterize(splats)
    for half in (left, right):
        CpuRenderer().rasterize(splats, half)


def test_absgrad_is_an_error_unless_it_was_asked_for():
    splats = CpuRenderer().project(ROWS, VIEW, sh_degree=0)
    CpuRenderer().rasterize(splats)
    with pytest.raises(ValueError, match="absgrad must be enabled"):
        _ = splats.absgrad


def test_no_rows_give_a_black_image_and_empty_gradients():
    results = render({k: v[:0] for k, v in ROWS.items()}, absgrad=True)
    assert results["image"].shape == (101, 150, 3)
    assert results["image"].count_nonzero() == 0
    assert results["alpha"].count_nonzero() == 0
    assert results["grad shN"].shape == (0, 15, 3)
    assert results["absgrad"].shape == (0, 2)


def test_the_degree_in_use_may_be_below_the_degree_that_is_stored():
    results = render(ROWS, sh_degree=1)
    assert results["grad shN"][:, :3].count_nonzero() > 0
    assert results["grad shN"][:, 3:].count_nonzero() == 0
    without = ROWS | {"shN": ROWS["shN"][:, :3]}
    assert torch.equal(render(without, sh_degree=1)["image"], results["image"])
