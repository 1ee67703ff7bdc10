# SPDX-License-Identifier: Apache-2.0
"""Five million rows in a view of 8K, beside gsplat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gs_raster.torch import rasterization

pytestmark = pytest.mark.gpu

N_ROWS = 5_000_000
WIDTH, HEIGHT, FOCAL = 7680, 4320, 6000.0


def rows_in_view() -> list[Tensor]:
    """means, quats, scales, opacities, colors: all over the image, a few pixels large."""
    noise = torch.Generator().manual_seed(0)
    uniform = torch.rand(N_ROWS, 3, generator=noise)
    depths = 2.0 + 8.0 * uniform[:, 2]
    x = (uniform[:, 0] * 1.02 - 0.01) * WIDTH - WIDTH / 2
    y = (uniform[:, 1] * 1.02 - 0.01) * HEIGHT - HEIGHT / 2
    means = torch.stack([x * depths / FOCAL, y * depths / FOCAL, depths], 1)
    pixels = 0.5 + 3.5 * torch.rand(N_ROWS, 3, generator=noise)
    values = (
        means,
        torch.randn(N_ROWS, 4, generator=noise),
        pixels * (depths / FOCAL)[:, None],
        0.05 + 0.9 * torch.rand(N_ROWS, generator=noise),
        torch.rand(N_ROWS, 3, generator=noise),
    )
    return [value.cuda() for value in values]


def drawn(function: Callable[..., Any], rows: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The image, and gradients of all but the quaternions' lengths."""
    leaves = [values.clone().requires_grad_() for values in rows]
    K = torch.tensor([[FOCAL, 0, WIDTH / 2], [0, FOCAL, HEIGHT / 2], [0, 0, 1.0]], device="cuda")
    viewmat = torch.eye(4, device="cuda")
    images, _, _ = function(*leaves, viewmat[None], K[None], WIDTH, HEIGHT, packed=False)
    weights = torch.randn(HEIGHT, WIDTH, 3, generator=torch.Generator().manual_seed(1)).cuda()
    (images[0] * weights).sum().backward()
    grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
    assert len(grads) == len(leaves)
    return images[0].detach(), grads


def test_five_million_rows_in_a_view_of_8k() -> None:
    gsplat = pytest.importorskip("gsplat")
    rows = rows_in_view()
    image, grads = drawn(rasterization, rows)
    expected_image, expected_grads = drawn(gsplat.rasterization, rows)
    off = (image - expected_image).abs().amax(-1)
    # At a threshold rounding adds a splat to a pixel, or takes one away.
    assert off.max() <= 1 / 255, off.max()
    assert (off > 1e-5).double().mean() <= 1e-3
    for grad, expected in zip(grads, expected_grads, strict=True):
        assert (grad - expected).norm() < 1e-3 * expected.norm()
