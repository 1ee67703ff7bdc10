# SPDX-License-Identifier: Apache-2.0
"""A made-up survey: flat land, photographed from above along lines, of which a view sees little."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gs_train.renderers import View

_SHARE = 0.015  # of the land, that a view sees
_FOCAL = 1.1  # image widths


def survey_rows(n_rows: int) -> dict[str, Tensor]:
    """Gaussians on a square of side 1, each as large as they are apart."""
    draw = torch.Generator().manual_seed(0)
    means = torch.rand(n_rows, 3, generator=draw)
    means[:, 2] *= 0.1 / math.sqrt(n_rows)
    shape = {"quats": (4,), "opacities": (), "sh0": (1, 3)}
    noise = {k: torch.randn(n_rows, *own, generator=draw) for k, own in shape.items()}
    noise["scales"] = 0.5 * torch.randn(n_rows, 3, generator=draw) - 0.5 * math.log(4 * n_rows)
    return {"means": means, **noise, "shN": torch.zeros(n_rows, 0, 3)}


def survey_views(n_views: int, *, width: int = 96, height: int = 64) -> list[View]:
    """Straight down, from places that cover the land evenly, there and back along lines."""
    n_lines = math.isqrt(n_views)
    per_line = -(-n_views // n_lines)
    across = math.sqrt(_SHARE * width / height)
    views = []
    for i in range(n_views):
        line, place = divmod(i, per_line)
        x = (place + 0.5) / per_line if line % 2 == 0 else 1 - (place + 0.5) / per_line
        pose = torch.diag(torch.tensor([1.0, -1.0, -1.0, 1.0]))
        eye = torch.tensor([x, (line + 0.5) / n_lines, across * _FOCAL])
        pose[:3, 3] = -pose[:3, :3] @ eye
        f = _FOCAL * width
        K = torch.tensor([[f, 0.0, width / 2], [0.0, f, height / 2], [0.0, 0.0, 1.0]])
        views.append(View(f"survey-{i:03}", pose, K, width, height))
    return views
