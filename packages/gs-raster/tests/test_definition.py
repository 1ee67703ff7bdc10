# SPDX-License-Identifier: Apache-2.0
"""The stages against float64 references: images, alphas and every gradient."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gs_raster import Options, cpu

sys.path.insert(0, str(Path(__file__).parent))
import raster_oracle as oracle
from raster_drawing import arrays, draw
from raster_oracle import View

DATA = Path(os.environ.get("GS_DATA", Path(__file__).resolve().parents[4] / "shared/data"))
MODES = pytest.mark.parametrize("antialiased", [False, True], ids=["classic", "antialiased"])


def weights(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss_of(image: Tensor, alpha: Tensor, mask: Tensor | float = 1.0) -> Tensor:
    """A loss with its own weight for every value, over the pixels of a mask."""
    w_image = weights(*image.shape) * mask
    w_alpha = weights(*alpha.shape, seed=6) * mask
    return (image * w_image).sum() + (alpha * w_alpha).sum()


def reference(rows: dict[str, Tensor], view: View, mask: Tensor | float = 1.0, **options):
    leaves = oracle.leaves(rows, torch.float64)
    splats = oracle.project(leaves, view, **options)
    splats.means2d.retain_grad()
    result = oracle.composite(splats, view.width, view.height)
    loss_of(result.image, result.alpha, mask).backward()
    return leaves, splats, result


def ours(rows: dict[str, Tensor], view: View, dtype: torch.dtype, mask=1.0, **options):
    rows = {name: values.to(dtype) for name, values in rows.items()}
    return draw(rows, view, loss=lambda image, alpha: loss_of(image, alpha, mask), **options)


def assert_close(name: str, found: Tensor, expected: Tensor, rtol: float, floor: float) -> None:
    """|found - expected| <= rtol |expected| + floor max|expected|, element by element."""
    bound = rtol * expected.abs() + floor * expected.abs().max()
    excess = ((found.double() - expected).abs() - bound).max().item()
    assert excess <= 0, f"{name}: off by {excess:.3g} more than allowed"


@MODES
@pytest.mark.parametrize("sh_degree", [0, 1, 2, 3])
def test_projection_and_its_gradient_equal_gsplats_in_float64(sh_degree, antialiased):
    view = oracle.random_view(sh_degree)
    rows = oracle.random_rows(sh_degree, view, n_rows=400)
    theirs = oracle.leaves(rows, torch.float64)
    expected = oracle.project(theirs, view, sh_degree=sh_degree, antialiased=antialiased)
    mine, how = arrays(rows), {"sh_degree": sh_degree, "options": Options(antialiased=antialiased)}
    found = cpu.project(mine, view.camera, **how)

    assert torch.equal(torch.from_numpy(found.radii), expected.radii)
    shown = expected.shown
    assert 50 < shown.sum() < 350
    loss, gradients = torch.zeros((), dtype=torch.float64), {}
    for seed, name in enumerate(("means2d", "conics", "depths", "opacities", "colors")):
        a, b = getattr(expected, name), torch.from_numpy(getattr(found, name))
        # Conics of long needles: torch's determinant cancels, ours does not.
        torch.testing.assert_close(b[shown], a[shown], rtol=1e-8, atol=1e-9)
        w = weights(*a.shape, seed=seed)
        loss, gradients[name] = loss + (w[shown] * a[shown]).sum(), w.numpy()
    loss.backward()
    grads = cpu.project_backward(
        mine, view.camera, cpu.SplatGradients(**gradients), radii=found.radii, **how
    )
    for name, grad in grads._asdict().items():
        grad = torch.from_numpy(grad)
        # Float64 rounding, and for antialiased rows gsplat's guarded division: see the oracle.
        rtol = 3e-4 if antialiased else 1e-7
        assert theirs[name].grad is not None
        assert_close(name, grad, theirs[name].grad, rtol, floor=1e-7)
        assert grad[~shown].count_nonzero() == 0


def test_some_projected_rows_lie_beyond_where_the_jacobian_is_held():
    view = oracle.random_view(3)
    rows = oracle.random_rows(3, view, n_rows=400)
    shown = oracle.project(rows, view, sh_degree=3).shown
    camera = rows["means"] @ view.viewmat[:3, :3].T + view.viewmat[:3, 3]
    ratio = camera[:, 0] / camera[:, 2]
    held = ratio > (1.15 * view.width - view.K[0, 2]) / view.K[0, 0]
    assert (held & shown).sum() >= 3


@MODES
@pytest.mark.parametrize(("seed", "sh_degree"), [(10, 0), (11, 1), (12, 2), (13, 3), (14, 3)])
def test_float64_render_and_gradients_equal_plain_compositing(seed, sh_degree, antialiased):
    view = oracle.random_view(seed)
    rows = oracle.random_rows(seed, view)
    options = {"sh_degree": sh_degree, "antialiased": antialiased}
    theirs, splats, expected = reference(rows, view, **options)
    found = ours(rows, view, torch.float64, **options)
    image, alpha = found["image"], found["alpha"]

    # In float64 no comparison lands on the other side of its threshold (margins are larger).
    assert expected.margin.min() > 1e-9
    assert 0 < expected.finished.sum() < expected.finished.numel()
    torch.testing.assert_close(image, expected.image, rtol=0, atol=1e-10)
    torch.testing.assert_close(alpha, expected.alpha, rtol=0, atol=1e-10)
    rtol = 1e-3 if antialiased else 1e-6
    for name in oracle.ATTRIBUTES:
        assert_close(name, found[f"grad {name}"], theirs[name].grad, rtol, floor=1e-6)
    assert_close("means2d", found["grad means2d"], splats.means2d.grad, 1e-7, floor=1e-9)


@MODES
@pytest.mark.parametrize("seed", [20, 21, 22])
def test_float32_render_and_gradients_are_near_float64_away_from_thresholds(seed, antialiased):
    view = oracle.random_view(seed)
    # float32 values, so that both sides start from the same rows.
    rows = {k: v.float().double() for k, v in oracle.random_rows(seed, view).items()}
    view = View(view.viewmat.float(), view.K.float(), view.width, view.height)
    options = {"sh_degree": 3, "antialiased": antialiased}
    _, _, expected = reference(rows, view, **options)
    # A comparison within 1e-4 of its threshold may tip over in float32: such pixels are counted,
    # and neither compared nor given a loss.
    clear = expected.margin > 1e-4
    assert (~clear).sum() <= 0.01 * clear.numel()
    mask = clear[..., None].double()
    theirs, _, _ = reference(rows, view, mask, **options)
    found = ours(rows, view, torch.float32, mask, **options)
    image, alpha = found["image"], found["alpha"]

    # Measured: 1e-6 for pixels, 3e-6 for gradients; a bound ten times that still means float32.
    assert ((image - expected.image).abs() * mask).max() < 1e-5
    assert ((alpha - expected.alpha).abs() * mask).max() < 1e-5
    # Even a tipped pixel changes by no more than one faint splat or what a full pixel hides.
    assert (image - expected.image).abs().max() < 0.02 * (1 + expected.image.max())
    for name in oracle.ATTRIBUTES:
        grad = theirs[name].grad
        relative = (found[f"grad {name}"] - grad).norm() / grad.norm()
        assert relative < 3e-5, f"{name}: {relative:.2g}"
        # Small values are differences of larger ones and keep only the larger ones' precision.
        assert_close(name, found[f"grad {name}"], grad, rtol=1e-3, floor=1e-5)


def fox_scene(width: int = 36, height: int = 64) -> tuple[dict[str, Tensor], View]:
    pycolmap = pytest.importorskip("pycolmap")
    folder = DATA / "fox" / "sparse"
    folder = folder / "0" if (folder / "0").is_dir() else folder
    if not folder.is_dir():
        pytest.skip(f"needs the fox capture in {DATA}")
    model = pycolmap.Reconstruction(str(folder))
    image = min(model.images.values(), key=lambda i: i.name)
    camera = model.cameras[image.camera_id]
    viewmat = torch.eye(4, dtype=torch.float64)
    viewmat[:3] = torch.from_numpy(np.array(image.cam_from_world().matrix()))
    K = torch.from_numpy(np.array(camera.calibration_matrix()))
    K[0] *= width / camera.width
    K[1] *= height / camera.height
    points = [model.points3D[i] for i in sorted(model.points3D)][::25]
    means = torch.from_numpy(np.array([p.xyz for p in points]))
    nearest = torch.cdist(means, means).kthvalue(4).values
    n = len(points)
    rows = {
        "means": means,
        "scales": nearest.log()[:, None] - 0.7 + 0.5 * weights(n, 3, seed=4),
        "quats": weights(n, 4, seed=1),
        "opacities": weights(n, seed=2),
        "sh0": torch.from_numpy(np.array([p.color for p in points]) / 255.0 - 0.5)[:, None] * 3.5,
        "shN": 0.1 * weights(n, 15, 3, seed=3),
    }
    return rows, View(viewmat, K, width, height)


@MODES
def test_a_real_point_cloud_renders_as_plain_compositing_does(antialiased):
    rows, view = fox_scene()
    options = {"sh_degree": 3, "antialiased": antialiased}
    theirs, splats, expected = reference(rows, view, **options)
    found = ours(rows, view, torch.float64, **options)
    image, alpha = found["image"], found["alpha"]
    assert splats.shown.sum() > 100
    assert torch.equal(found["radii"], splats.radii)
    torch.testing.assert_close(image, expected.image, rtol=0, atol=1e-10)
    torch.testing.assert_close(alpha, expected.alpha, rtol=0, atol=1e-10)
    for name in oracle.ATTRIBUTES:
        rtol = 1e-3 if antialiased else 1e-6
        assert_close(name, found[f"grad {name}"], theirs[name].grad, rtol, floor=1e-6)


def test_absgrad_is_the_sum_of_absolute_pixel_gradients():
    view = oracle.random_view(30, width=19, height=18)
    rows = oracle.random_rows(30, view, n_rows=25)
    leaves = oracle.leaves(rows, torch.float64)
    splats = oracle.project(leaves, view, sh_degree=3)
    result = oracle.composite(splats, view.width, view.height)
    w_image = weights(*result.image.shape)
    w_alpha = weights(*result.alpha.shape, seed=6)
    pixels = (result.image * w_image).sum(-1) + (result.alpha * w_alpha)[..., 0]
    expected = torch.zeros_like(splats.means2d)
    for pixel in pixels.flatten():
        (grad,) = torch.autograd.grad(pixel, splats.means2d, retain_graph=True)
        expected += grad.abs()

    found = ours(rows, view, torch.float64, sh_degree=3, absgrad=True)["absgrad"]
    assert found.shape == (25, 2)
    assert expected.count_nonzero() > 10
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
