# SPDX-License-Identifier: Apache-2.0
"""Random rows before a random camera."""

from __future__ import annotations

import torch
from torch import Tensor

from gs_train.renderers.protocol import Rows, View

ATTRIBUTES = ("means", "scales", "quats", "opacities", "sh0", "shN")


def leaves(rows: Rows, dtype: torch.dtype) -> dict[str, Tensor]:
    """Copies that collect gradients."""
    return {k: v.detach().to(dtype).clone().requires_grad_() for k, v in rows.items()}


def random_view(seed: int, width: int = 52, height: int = 37) -> View:
    """A camera somewhere, with unequal focal lengths and the principal point off the centre."""
    g = torch.Generator().manual_seed(seed)
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, generator=g, dtype=torch.float64))
    if torch.linalg.det(rotation) < 0:
        rotation[2] *= -1
    viewmat = torch.eye(4, dtype=torch.float64)
    viewmat[:3, :3] = rotation
    viewmat[:3, 3] = torch.randn(3, generator=g, dtype=torch.float64)
    K = torch.tensor(
        [[0.9 * width, 0.0, 0.47 * width], [0.0, 1.1 * width, 0.55 * height], [0.0, 0.0, 1.0]]
    ).double()
    return View(f"random {seed}", viewmat, K, width, height)


def random_rows(seed: int, view: View, n_rows: int = 250, n_bases: int = 15) -> dict[str, Tensor]:
    """float64 rows before, beside and behind the camera of ``view``, faint to opaque."""
    g = torch.Generator().manual_seed(seed + 1000)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=g, dtype=torch.float64)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    depth = uniform(0.6, 6.0, n_rows, 1)
    depth[::20] *= -1
    # Up to twice the field of view: some rows reach the image from beyond the held Jacobian.
    camera = torch.cat([depth * uniform(-1.1, 1.1, n_rows, 2), depth], 1)
    means = (camera - view.viewmat[:3, 3].double()) @ view.viewmat[:3, :3].double()
    return {
        "means": means,
        "scales": uniform(-4.0, 0.0, n_rows, 3),
        "quats": normal(n_rows, 4) * uniform(0.3, 3.0, n_rows, 1),
        "opacities": 2.0 + 3.0 * normal(n_rows),
        "sh0": normal(n_rows, 1, 3),
        "shN": 0.3 * normal(n_rows, n_bases, 3),
    }
