# SPDX-License-Identifier: Apache-2.0
"""A short street with photographs, rendered for real, for runs whose gradients are not scripted."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from plain_adam import Gradients
from street import street_rows, street_views
from torch import Tensor

import gs_cull
from gs_train.config import FitConfig
from gs_train.gaussians import Gaussians
from gs_train.loss import Crop, photometric_loss
from gs_train.renderers import Renderer, RenderOptions, View, make_renderer
from gs_train.rows import NAMES
from gs_train.trainer import Trainer

N_ROWS = 4000
WIDTH, HEIGHT = 48, 32


@functools.cache
def renderer(name: str = "cpu") -> Renderer:
    return make_renderer(name, RenderOptions())


@functools.cache
def views(device: str = "cpu") -> list[View]:
    """So wide that a row is seen by several views of a batch."""
    return [view.to(device) for view in street_views(width=WIDTH, height=HEIGHT, focal=0.4)]


@functools.cache
def first_rows() -> dict[str, Tensor]:
    """What is trained: the street, blurred."""
    draw = torch.Generator().manual_seed(3)
    rows = street_rows(N_ROWS, sh_degree=1)
    rows["means"] = rows["means"] + 0.1 * torch.randn(N_ROWS, 3, generator=draw)
    rows["scales"] = rows["scales"] + 0.5
    rows["sh0"] = rows["sh0"] * 0.3
    rows["shN"] = torch.zeros_like(rows["shN"])
    return rows


@functools.cache
def photographs(device: str = "cpu") -> list[Tensor]:
    """(H, W, 3) uint8 of each view."""
    if device != "cpu":
        return [photograph.to(device) for photograph in photographs()]
    rows = street_rows(N_ROWS, sh_degree=1)
    rows["opacities"] = rows["opacities"] + 3.5
    rows["scales"] = rows["scales"] + 0.5
    return [(255 * render(rows, view)).round().byte() for view in views()]


@torch.no_grad()
def render(rows: dict[str, Tensor], view: View) -> Tensor:
    """(H, W, 3) in 0..1."""
    ids = seen_ids(rows, view)
    if not len(ids):
        return torch.zeros(view.height, view.width, 3)
    splats = renderer().project({n: rows[n][ids] for n in NAMES}, view, sh_degree=1)
    return renderer().rasterize(splats)[0].clamp(0.0, 1.0)


def psnr(rows: dict[str, Tensor]) -> float:
    """Of all views together, decibels."""
    errors = [
        (render(rows, view) - truth / 255.0).square().mean()
        for view, truth in zip(views()[:-1], photographs(), strict=False)
    ]
    return float(-10.0 * torch.stack(errors).mean().log10())


def seen_ids(rows: Any, view: View) -> Tensor:
    """(R,) int64."""
    geometry = [rows[name].detach() for name in ("means", "scales", "quats")]
    return gs_cull.visible_ids(
        *geometry,
        view.viewmat,
        view.K,
        view.width,
        view.height,
        opacities=rows["opacities"].detach(),
    ).long()


def photo_config(**options: Any) -> FitConfig:
    return FitConfig(
        data=Path("-"),
        out=Path("-"),
        **{"steps": 400, "renderer": "cpu", "seed": 2, "sh_every": 0, "sh_degree": 1, **options},
    )


def gradients_of(n_views: int, ssim_lambda: float) -> Gradients:
    """Of the mean loss of so many views, by autograd, for all rows."""

    def of(view: View, step: int, model: Gaussians) -> tuple[dict[str, Tensor], None]:
        index = next(i for i, other in enumerate(views()) if other.name == view.name)
        total = {name: torch.zeros_like(p) for name, p in model.params.items()}
        ids = seen_ids(model.params, view)
        if len(ids):
            leaves = {n: p.detach()[ids].requires_grad_() for n, p in model.params.items()}
            image, _ = renderer().rasterize(renderer().project(leaves, view, sh_degree=1))
            crop = Crop(view, view.rect)
            loss = photometric_loss(image, photographs()[index], crop, ssim_lambda) / n_views
            loss.backward()
            for name, leaf in leaves.items():
                assert leaf.grad is not None
                total[name][ids] = leaf.grad
        return total, None

    return of


def train(trainer: Trainer, batches: Sequence[Sequence[int]], *, hints: bool = True) -> None:
    """The remaining of these steps."""
    device = trainer.renderer.device.type
    known, taken = views(device), photographs(device)
    while trainer.step < len(batches):
        step = trainer.step
        upcoming = batches[step + 1 : step + 3] if hints else ()
        batch = [(known[i], taken[i]) for i in batches[step]]
        trainer.train_step(batch, [[known[i] for i in following] for following in upcoming])
