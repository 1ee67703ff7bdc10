# SPDX-License-Identifier: Apache-2.0
"""A short street and a real capture, rendered for real, for runs whose gradients are not scripted.

The capture is not in this repository; GS_DATA names the folder that has it.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_adam import Gradients
from street import EXTENT, street_rows, street_views
from torch import Tensor

import gs_cull
from gs_train.data.capture import load_capture, read_image
from gs_train.losses.depth import depth_bytes
from gs_train.losses.loss import Crop, photometric_loss
from gs_train.losses.mask import CARVED, IGNORED, KEPT
from gs_train.options.config import FitConfig
from gs_train.options.schedule import LearningRates
from gs_train.renderers import (
    InverseDepth,
    Renderer,
    RenderOptions,
    View,
    make_renderer,
    with_depths,
)
from gs_train.rows.attributes import NAMES
from gs_train.rows.gaussians import Gaussians
from gs_train.runs.trainer import Trainer
from gs_train.scene.initialize import rows_from_points
from gs_train.scene.scene import Scene

N_ROWS = 4000
WIDTH, HEIGHT = 48, 32
LIVELY = LearningRates(means=5e-4, scales=2e-2, quats=1e-2, sh0=1e-2, shN=1e-3)


@functools.cache
def renderer(name: str = "cpu") -> Renderer:
    return make_renderer(name, RenderOptions())


@dataclass(frozen=True, eq=False)
class Photographed:
    """What a run starts from, and photographs of what it should become.

    Attributes:
        rows: what is trained; on the CPU.
        views: of the photographs, on one device.
        photographs: (H, W, 3) uint8 of each, there too.
        extent: as `Trainer` takes it.
    """

    rows: dict[str, Tensor]
    views: list[View]
    photographs: list[Tensor]
    extent: float

    @functools.cache  # noqa: B019 (scenes live as long as the tests)
    def on(self, device: str) -> Photographed:
        if self.views[0].viewmat.device.type == device:
            return self
        views = [view.to(device) for view in self.views]
        return replace(self, views=views, photographs=[p.to(device) for p in self.photographs])


@functools.cache
def street() -> Photographed:
    """Its cameras are so wide that a row is seen by several views of a batch; its rows blurred."""
    views = street_views(width=WIDTH, height=HEIGHT, focal=0.4)
    draw = torch.Generator().manual_seed(3)
    rows = street_rows(N_ROWS, sh_degree=1)
    rows["means"] = rows["means"] + 0.1 * torch.randn(N_ROWS, 3, generator=draw)
    rows["scales"] = rows["scales"] + 0.5
    rows["sh0"] = rows["sh0"] * 0.3
    rows["shN"] = torch.zeros_like(rows["shN"])
    truth = street_rows(N_ROWS, sh_degree=1)
    truth["opacities"] = truth["opacities"] + 3.5
    truth["scales"] = truth["scales"] + 0.5
    photographs = [(255 * render(truth, view)).round().byte() for view in views]
    return Photographed(rows, views, photographs, EXTENT)


@functools.cache
def masked_street() -> Photographed:
    """The street with masks of all kinds on its photographs: one has none, one hides all."""
    scene, draw = street(), torch.Generator().manual_seed(4)
    masked = []
    for i, photograph in enumerate(scene.photographs):
        states = torch.full((HEIGHT, WIDTH, 1), KEPT, dtype=torch.uint8)
        states[8:20, 10 + i % 20 : 24 + i % 20] = IGNORED
        states[:5, ::2] = CARVED
        states[torch.rand(states.shape, generator=draw) < 0.1] = CARVED
        masked.append(torch.cat([photograph, states], dim=2))
    masked[1] = scene.photographs[1]
    masked[2][..., 3] = IGNORED
    return replace(scene, photographs=masked)


@functools.cache
def deep_street() -> Photographed:
    """The street with depth maps on its photographs, masked or not: two have none, of which one has
    a mask."""
    scene, masked = street(), masked_street()
    views, photographs = [], []
    for i, view in enumerate(scene.views):
        photograph = (masked if i % 3 == 0 else scene).photographs[i]
        if i not in (1, 3):
            of = InverseDepth(2.0 + 0.1 * i, -0.05)
            depth = inverse_depth(scene.rows, view)
            values = ((0.7 * depth - of.offset) / of.scale * 65536).clamp(0, 65535).round()
            two = torch.from_numpy(depth_bytes(values.numpy().astype(np.uint16)))
            photograph, view = torch.cat([photograph, two], 2), replace(view, inverse_depth=of)
        views.append(view)
        photographs.append(photograph)
    return replace(scene, views=views, photographs=photographs)


@torch.no_grad()
def inverse_depth(rows: dict[str, Tensor], view: View) -> Tensor:
    """(H, W) as the loss defines it."""
    ids = seen_ids(rows, view)
    if not len(ids):
        return torch.zeros(view.height, view.width)
    splats = renderer().project({n: rows[n][ids] for n in NAMES}, view, sh_degree=1)
    _, alpha, depth = with_depths(renderer()).rasterize_with_depth(splats)
    return (alpha.square() / depth).where(depth > 0, 0.0)[..., 0]


FOX = Path(os.environ.get("GS_DATA", Path(__file__).resolve().parents[4] / "shared/data")) / "fox"


@functools.cache
def fox() -> Photographed:
    """Every fourth point of a reconstruction, most of which most of its views see."""
    with tempfile.TemporaryDirectory() as cache:
        scene = Scene.load(load_capture(FOX, cache_dir=cache, max_side=48), torch.device("cpu"))
        photographs = [torch.from_numpy(np.array(read_image(v))) for v in scene.capture.views]
    points = scene.frame.points_in(scene.capture.points[::4])
    rows = rows_from_points(points, scene.capture.colors[::4], sh_degree=1, seed=0)
    return Photographed(rows, list(scene.views), photographs, scene.frame.extent)


def photographed(name: str) -> Photographed:
    scenes = {"street": street, "masked street": masked_street, "deep street": deep_street}
    return {**scenes, "fox": fox}[name]()


NEEDS_FOX = pytest.mark.skipif(not FOX.is_dir(), reason=f"needs the capture {FOX} (set GS_DATA)")
TWO = ["street", pytest.param("fox", marks=NEEDS_FOX)]
"""Names of scenes."""


@torch.no_grad()
def render(rows: dict[str, Tensor], view: View) -> Tensor:
    """(H, W, 3) in 0..1."""
    ids = seen_ids(rows, view)
    if not len(ids):
        return torch.zeros(view.height, view.width, 3)
    splats = renderer().project({n: rows[n][ids] for n in NAMES}, view, sh_degree=1)
    return renderer().rasterize(splats)[0].clamp(0.0, 1.0)


def psnr(rows: dict[str, Tensor], scene: Photographed) -> float:
    """Of all views that see something together, decibels."""
    errors = [
        (render(rows, view) - truth / 255.0).square().mean()
        for view, truth in zip(scene.views, scene.photographs, strict=True)
        if truth.any()
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


def gradients_of(scene: Photographed, n_views: int, ssim_lambda: float) -> Gradients:
    """Of the mean loss of so many views, by autograd, for all rows."""

    def of(view: View, step: int, model: Gaussians) -> tuple[dict[str, Tensor], None]:
        index = next(i for i, other in enumerate(scene.views) if other.name == view.name)
        total = {name: torch.zeros_like(p) for name, p in model.params.items()}
        ids = seen_ids(model.params, view)
        if len(ids):
            leaves = {n: p.detach()[ids].requires_grad_() for n, p in model.params.items()}
            image, _ = renderer().rasterize(renderer().project(leaves, view, sh_degree=1))
            crop = Crop(view, view.rect)
            loss = photometric_loss(image, scene.photographs[index], crop, ssim_lambda) / n_views
            loss.backward()
            for name, leaf in leaves.items():
                assert leaf.grad is not None
                total[name][ids] = leaf.grad
        return total, None

    return of


def train(
    trainer: Trainer,
    batches: Sequence[Sequence[int]],
    *,
    scene: Photographed | None = None,
) -> list[Tensor]:
    """The remaining of these steps, along the street if nothing else is given; their losses."""
    scene = (scene or street()).on(trainer.renderer.device.type)
    losses = []
    while trainer.step < len(batches):
        step = trainer.step
        upcoming = batches[step + 1 : step + 3]
        batch = [(scene.views[i], scene.photographs[i]) for i in batches[step]]
        known = [[scene.views[i] for i in following] for following in upcoming]
        losses.append(trainer.train_step(batch, known).loss)
    return losses


def rows_of(trainer: Trainer) -> dict[str, Tensor]:
    """What a run leaves, which ends here."""
    trainer.backend.finish()
    rows = {name: trainer.model.read(name).cpu().clone() for name in NAMES}
    if trainer.preset.placement == "split":
        trainer.model.close()  # type: ignore[attr-defined]
    return rows
