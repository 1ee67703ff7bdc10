# SPDX-License-Identifier: Apache-2.0
"""A cloud of Gaussians and views that pass it."""

from __future__ import annotations

import torch
from torch import Tensor

import gs_cull
from gs_train.renderers import View


def cloud_rows(n: int, k: int = 15, seed: int = 0) -> dict[str, Tensor]:
    """The six attributes of ``n`` rows around (0, 0, 6)."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(n, *shape, generator=random)

    return {
        "means": normal(3) + torch.tensor([0.0, 0.0, 6.0]),
        "scales": normal(3) * 0.3 - 3.0,
        "quats": normal(4),
        "opacities": normal(),
        "sh0": normal(1, 3),
        "shN": normal(k, 3),
    }


def views_along(n: int, width: int = 96, height: int = 64) -> list[View]:
    """Cameras side by side, each of which sees some of the cloud."""
    views = []
    for i in range(n):
        viewmat = torch.eye(4)
        viewmat[0, 3] = 2.0 * i / n - 1.0
        K = torch.tensor([[150.0, 0, width / 2], [0, 150.0, height / 2], [0, 0, 1]])
        views.append(View(f"{i}", viewmat, K, width, height))
    return views


def seen_by(rows: dict[str, Tensor], views: list[View]) -> list[int]:
    """Rows that any view sees."""
    ids = [
        gs_cull.visible_ids(
            rows["means"], rows["scales"], rows["quats"], view.viewmat, view.K, 96, 64,
            opacities=rows["opacities"],
        )
        for view in views
    ]  # fmt: skip
    return torch.cat(ids).unique().tolist()


def bytes_of(*tensors: Tensor) -> int:
    """Of all elements."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
