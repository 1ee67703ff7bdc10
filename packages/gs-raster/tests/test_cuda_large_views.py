# SPDX-License-Identifier: Apache-2.0
"""Five million rows in a view of 8K, beside float64."""

from __future__ import annotations

import pytest
import torch
from raster_device import GRADIENTS, exact_splats, noise, off, rows_of
from torch import Tensor

import gs_raster
from gs_raster import Rect, View, cpu

pytestmark = pytest.mark.gpu

N_ROWS = 5_000_000
WIDTH, HEIGHT, FOCAL = 7680, 4320, 6000.0


def rows_in_view() -> dict[str, Tensor]:
    """Stored rows all over the image, a few pixels large."""
    random = torch.Generator().manual_seed(0)
    x, y, depths = torch.rand(3, N_ROWS, generator=random)
    depths = 2.0 + 8.0 * depths
    across = (1.02 * x - 0.51) * WIDTH * depths / FOCAL
    down = (1.02 * y - 0.51) * HEIGHT * depths / FOCAL
    pixels = 0.5 + 3.5 * torch.rand(N_ROWS, 3, generator=random)
    return {
        "means": torch.stack([across, down, depths], 1),
        "scales": (pixels * (depths / FOCAL)[:, None]).log(),
        "quats": torch.randn(N_ROWS, 4, generator=random),
        "opacities": torch.randn(N_ROWS, generator=random),
        "sh0": torch.randn(N_ROWS, 1, 3, generator=random),
        "shN": torch.zeros(N_ROWS, 0, 3),
    }


def test_five_million_rows_in_a_view_of_8k() -> None:
    K = torch.tensor([[FOCAL, 0.0, WIDTH / 2], [0.0, FOCAL, HEIGHT / 2], [0.0, 0.0, 1.0]])
    view = View(torch.eye(4).cuda(), K.cuda(), WIDTH, HEIGHT)
    splats = gs_raster.project(rows_of(rows_in_view()), view, sh_degree=0, radii=True)
    assert splats.shows.sum() > 0.9 * N_ROWS
    lists = gs_raster.sort(splats)
    pixels = gs_raster.blend(splats, lists)
    exact = exact_splats(splats)
    expected = cpu.blend(exact, cpu.sort(exact, Rect(0, 0, WIDTH, HEIGHT)))
    image, alpha = (torch.from_numpy(v).cuda() for v in (expected.image, expected.alpha))
    far = (pixels.image - image).abs().amax(-1).maximum((pixels.alpha - alpha[..., 0]).abs())
    # At a threshold rounding adds a splat to a pixel, or takes one away.
    clear = far <= 1e-5 * image.max()
    assert far.max() <= image.max() / 255
    assert (~clear).double().mean() <= 1e-3
    grad_image = noise(HEIGHT, WIDTH, 3, seed=1) * clear[..., None]
    grad_alpha = noise(HEIGHT, WIDTH, seed=2) * clear
    found = gs_raster.blend_backward(splats, lists, pixels, grad_image, grad_alpha)
    gradients = cpu.blend_backward(
        expected,
        grad_image.double().cpu().numpy(),
        grad_alpha.double().cpu().numpy()[..., None],
    )
    for name in ("means2d", "conics", "opacities", "colors"):
        part = torch.from_numpy(getattr(gradients, name))
        assert off(found[:, GRADIENTS[name]], part) < 2e-4, name
