# SPDX-License-Identifier: Apache-2.0
"""Depth as a fourth channel, and backgrounds: values, and gradients by finite differences."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gs_raster import Options, Rect, cpu

sys.path.insert(0, str(Path(__file__).parent))
import raster_oracle as oracle
from raster_drawing import arrays

MODES = pytest.mark.parametrize("antialiased", [False, True], ids=["classic", "antialiased"])
BACKGROUND = np.array([0.9, 0.2, 0.5])
VIEW = oracle.random_view(10)
ROWS = oracle.random_rows(10, VIEW)
SPLATS = cpu.project(arrays(ROWS), VIEW.camera, sh_degree=3)
TILES = cpu.sort(SPLATS, VIEW.rect)


def weights(*shape: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_channels_are_sums_of_shares_and_what_is_left_of_the_background():
    found = cpu.blend(SPLATS, TILES, background=BACKGROUND, with_depth=True)
    expected = oracle.project(ROWS, VIEW, sh_degree=3)
    colors = oracle.composite(expected, VIEW.width, VIEW.height)
    expected.colors = expected.depths[:, None].expand(-1, 3)
    depths = oracle.composite(expected, VIEW.width, VIEW.height).image[..., 0]
    # In float64 no comparison lands on the other side of its threshold.
    assert colors.margin.min() > 1e-9
    over = colors.image + (1 - colors.alpha) * torch.from_numpy(BACKGROUND)
    assert found.image.shape == (VIEW.height, VIEW.width, 4)
    assert depths.max() > 1
    assert np.abs(found.image[..., :3] - over.numpy()).max() < 1e-10
    assert np.abs(found.image[..., 3] - depths.numpy()).max() < 1e-10


def test_depth_and_a_black_background_leave_the_other_results_as_they_are():
    plain = cpu.blend(SPLATS, TILES)
    deep = cpu.blend(SPLATS, TILES, background=np.zeros(3), with_depth=True)
    assert np.array_equal(deep.image[..., :3], plain.image)
    assert np.array_equal(deep.alpha, plain.alpha)
    grad_image, grad_alpha = weights(*plain.image.shape), weights(*plain.alpha.shape)
    expected = cpu.blend_backward(plain, grad_image, grad_alpha, absgrad=True)
    grad_deep = np.concatenate([grad_image, np.zeros_like(grad_alpha)], 2)
    found = cpu.blend_backward(deep, grad_deep, grad_alpha, absgrad=True)
    assert expected.depths is None
    assert expected.background is None
    assert not found.depths.any()
    for name in ("means2d", "conics", "opacities", "colors", "absgrad"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("with_depth", [False, True], ids=["colour", "depth"])
def test_absgrad_is_the_sum_of_the_absolute_gradients_of_single_pixels(with_depth: bool):
    view = oracle.random_view(30, width=19, height=18)
    rows = arrays(oracle.random_rows(30, view, n_rows=25))
    splats = cpu.project(rows, view.camera, sh_degree=3)
    grad_image, grad_alpha = weights(18, 19, 3 + with_depth), weights(18, 19, 1, seed=6)

    def gradients(rect: Rect) -> cpu.SplatGradients:
        tiles = cpu.sort(splats, rect)
        blended = cpu.blend(splats, tiles, background=BACKGROUND, with_depth=with_depth)
        part = (slice(rect.y0, rect.y1), slice(rect.x0, rect.x1))
        return cpu.blend_backward(blended, grad_image[part], grad_alpha[part], absgrad=True)

    whole = gradients(view.rect)
    pixels = itertools.product(range(19), range(18))
    alone = [gradients(Rect(x, y, x + 1, y + 1)) for x, y in pixels]
    assert np.abs(whole.absgrad - sum(np.abs(g.means2d) for g in alone)).max() < 1e-9
    assert np.abs(whole.means2d).max() > 0.1
    names = ("means2d", "conics", "opacities", "colors", "background", *["depths"] * with_depth)
    for name in names:
        total = sum(getattr(g, name) for g in alone)
        assert np.allclose(getattr(whole, name), total, rtol=1e-9, atol=1e-9), name


@MODES
def test_gradients_equal_finite_differences(antialiased: bool):
    view = oracle.random_view(7, width=9, height=8)
    g = torch.Generator().manual_seed(3)
    camera = torch.tensor([[0.1, -0.1, 2.0], [-0.2, 0.1, 2.5], [0.1, 0.2, 3.0]]).double()
    # Broad enough that alpha is above its threshold in every pixel: no jumps.
    rows = arrays(
        {
            "means": (camera - view.viewmat[:3, 3]) @ view.viewmat[:3, :3],
            "scales": -0.5 + 0.2 * torch.randn(3, 3, generator=g, dtype=torch.float64),
            "quats": torch.randn(3, 4, generator=g, dtype=torch.float64),
            "opacities": torch.tensor([-0.5, 0.3, 0.8]).double(),
            "sh0": torch.randn(3, 1, 3, generator=g, dtype=torch.float64).abs(),
            "shN": 0.1 * torch.randn(3, 15, 3, generator=g, dtype=torch.float64),
        }
    )
    background = BACKGROUND.copy()
    how = {"sh_degree": 3, "options": Options(antialiased=antialiased)}
    grad_image, grad_alpha = weights(8, 9, 4), weights(8, 9, 1, seed=6)

    def draw() -> tuple[cpu.Splats, cpu.Blended]:
        splats = cpu.project(rows, view.camera, **how)
        tiles = cpu.sort(splats, view.rect)
        return splats, cpu.blend(splats, tiles, background=background, with_depth=True)

    def loss() -> float:
        _, blended = draw()
        return float((blended.image * grad_image).sum() + (blended.alpha * grad_alpha).sum())

    splats, blended = draw()
    gradients = cpu.blend_backward(blended, grad_image, grad_alpha)
    grads = cpu.project_backward(rows, view.camera, gradients, radii=splats.radii, **how)
    named = [*zip(rows._fields, rows, grads), ("background", background, gradients.background)]
    step = 1e-5
    for name, values, grad in named:
        for index in np.ndindex(values.shape):
            kept = values[index]
            values[index] = kept + step
            above = loss()
            values[index] = kept - step
            below = loss()
            values[index] = kept
            # Rounding of the loss is 1e-15 / step. The guard in the compensation's gradient is 1e-6
            # by itself.
            expected = (above - below) / (2 * step)
            assert abs(grad[index] - expected) <= 1e-4 * abs(expected) + 1e-6, f"{name} {index}"
