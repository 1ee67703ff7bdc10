# SPDX-License-Identifier: Apache-2.0
"""A made-up street and a drive along it, of which every view sees a small part.

Two facades and the ground between them, photographed sideways, as capture vehicles do. The last
camera looks at the sky and sees nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gs_train.renderers import View

N_ROWS = 20_000
N_VIEWS = 60
NOTHING = N_VIEWS - 1
"""The view that sees nothing."""

EXTENT = 20.0
"""What the trainer takes as the scene's radius: it sets step lengths and sizes of Gaussians."""

_LENGTH, _HALF_WIDTH, _HEIGHT = 240.0, 6.0, 6.0


def street_rows(n_rows: int = N_ROWS, *, seed: int = 0, sh_degree: int = 3) -> dict[str, Tensor]:
    """Gaussians of about a quarter of a metre: two fifths on each facade, the rest on the ground.

    Values keep away from zero: a number that trains from 1 to 0.001 keeps the rounding errors of 1.
    """
    draw = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(n_rows, *shape, generator=draw) * (high - low) + low

    def signed(low: float, high: float, *shape: int) -> Tensor:
        return uniform(low, high, *shape) * (uniform(-1.0, 1.0, *shape).sign())

    along, across, up = uniform(0.0, _LENGTH), uniform(-1.0, 1.0), uniform(0.6, _HEIGHT)
    kind = torch.arange(n_rows) % 5
    side = torch.where(kind % 2 == 0, 1.0, -1.0)
    is_ground = kind == 4
    means = torch.stack(
        [
            along,
            torch.where(is_ground, across, side) * _HALF_WIDTH,
            torch.where(is_ground, torch.full_like(up, 0.6), up),
        ],
        1,
    )
    k = (sh_degree + 1) ** 2 - 1
    return {
        "means": means,
        "scales": uniform(math.log(0.1), math.log(0.35), 3),
        "quats": signed(0.5, 1.0, 4),
        "opacities": uniform(-3.9, -1.5),
        "sh0": signed(0.6, 1.2, 1, 3),
        "shN": signed(0.05, 0.12, k, 3),
    }


def street_views(
    n_views: int = N_VIEWS, *, width: int = 96, height: int = 64, focal: float = 1.1
) -> list[View]:
    """Cameras that look at the two facades in turns; the last one looks up.

    Args:
        focal: length in image widths; with 1.1 a view sees 2 % of the rows.
    """
    return [
        _view(f"street-{i:02}", i, n_views, width, height, focal)
        if i < n_views - 1
        else _facing(
            "sky", (_LENGTH / 2, 0.0, 20.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0), width, height
        )
        for i in range(n_views)
    ]


def whole_street(*, width: int = 96, height: int = 64) -> View:
    """A view from far above that sees everything."""
    away = (_LENGTH / 2, 0.0, 1.5 * _LENGTH)
    return _facing("all", away, (0.0, 0.0, -1.0), (1.0, 0.0, 0.0), width, height)


def drive(n_steps: int, batch_size: int, *, n_views: int = N_VIEWS) -> list[list[int]]:
    """The views of each step: neighbours on one side, now and then with a stranger, in any order.

    All views in turns; but those at one end of the street rest in the first third of the steps, and
    those at the other end in the last third, so that what they see sleeps for long.
    """
    draw = torch.Generator().manual_seed(7)
    rest = n_views // 6
    steps: list[list[int]] = []
    while len(steps) < n_steps:
        first = rest if len(steps) >= 2 * n_steps // 3 else 0
        last = n_views - rest if len(steps) < n_steps // 3 else n_views
        turn = sorted(range(first, last), key=lambda i: (i // (2 * batch_size), i % 2, i))
        batches = [turn[k : k + batch_size] for k in range(0, len(turn), batch_size)]
        batches = [batches[k] for k in torch.randperm(len(batches), generator=draw)]
        batches = [batch for batch in batches if len(batch) == batch_size]
        for one, other in zip(batches[::5], batches[1::5]):
            one[-1], other[-1] = other[-1], one[-1]
        batches[0][0] = n_views - 1
        steps += [
            [batch[i] for i in torch.randperm(batch_size, generator=draw)] for batch in batches
        ]
    return steps[:n_steps]


def _view(name: str, i: int, n_views: int, width: int, height: int, focal: float) -> View:
    side = 1.0 if i % 2 else -1.0
    yaw = 0.25 * math.sin(2.3 * i)
    eye = (_LENGTH * (i + 0.5) / n_views, -0.6 * _HALF_WIDTH * side, 2.6)
    forward = (math.sin(yaw), side * math.cos(yaw), 0.0)
    right = (side * math.cos(yaw), -math.sin(yaw), 0.0)
    return _facing(name, eye, forward, right, width, height, focal)


def _facing(
    name: str,
    eye: tuple[float, ...],
    forward: tuple[float, ...],
    right: tuple[float, ...],
    width: int,
    height: int,
    focal: float = 1.1,
) -> View:
    z, x = torch.tensor(forward), torch.tensor(right)
    pose = torch.eye(4)
    pose[:3, :3] = torch.stack([x, torch.linalg.cross(z, x), z])
    pose[:3, 3] = -pose[:3, :3] @ torch.tensor(eye)
    f = focal * width
    K = torch.tensor([[f, 0.0, width / 2], [0.0, f, height / 2], [0.0, 0.0, 1.0]])
    return View(name, pose, K, width, height)
