# SPDX-License-Identifier: Apache-2.0
"""A renderer whose gradients are written down beforehand.

They depend on (view, row, step) alone and are small integers, so that sums are exact in any order:
whatever two runs differ by comes from the engine and the optimizers, not from rendering. What a row
is it carries in the first component of its quaternion, which never gets a gradient and which
whoever copies or moves rows copies or moves along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from gs_train.losses.ssim import HALO
from gs_train.published import loads, stores, streamed
from gs_train.renderers import RenderOptions, Rows, Splats, View
from gs_train.renderers.protocol import Rect
from gs_train.rows.attributes import NAMES

_FIRST = 1000.0  # so that the rest of a quaternion hardly turns it
_MARGIN = 0.12  # of the image: how far from its border a row is that a view sees for certain


def signed(rows: Rows) -> dict[str, Tensor]:
    """The same rows, each with its number written into it."""
    quats = rows["quats"].clone()
    quats[:, 0] = torch.arange(len(quats)) + _FIRST
    return {**rows, "quats": quats}


def numbers(quats: Tensor) -> Tensor:
    """(R,) int64 what each row is, its copies the same."""
    return (quats[:, 0].detach() - _FIRST).long()


def small_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings that are full now and then, of pieces smaller than a view's rows."""
    monkeypatch.setattr(loads, "CHUNK_BYTES", 24 << 10)
    monkeypatch.setattr(stores, "CHUNK_BYTES", 24 << 10)
    monkeypatch.setattr(streamed, "RING_BYTES", 64 << 10)


class Script:
    """Gradients of rows in views.

    Only rows that lie well inside a view at the start have any there, so that the small moves of a
    test decide nothing.

    Args:
        views: by name.
        rows: the first rows, signed.
    """

    def __init__(self, views: Sequence[View], rows: Rows) -> None:
        self._index = {view.name: i for i, view in enumerate(views)}
        self._widths = {name: rows[name][0].numel() for name in NAMES}
        self.shows = torch.stack([_lies_inside(rows["means"], view) for view in views])

    def shown(self, view: View, number: Tensor) -> Tensor:
        """(R,) bool."""
        return self.shows[self._index[view.name]][number]

    def gradients(self, view: View, number: Tensor, step: int) -> dict[str, Tensor]:
        """By attribute (R, width) in -3..3, zero for rows that the view does not show.

        ``means2d`` (R, 2) has its second component zero: norms are then exact as well.
        """
        widths = {**self._widths, "means2d": 2}
        places = self.shown(view, number).nonzero().flatten()
        every = torch.zeros(len(number), sum(widths.values()))
        every[places] = _integers(self._index[view.name], step, number[places], every.shape[1])
        parts = dict(zip(widths, every.split(list(widths.values()), dim=1), strict=True))
        parts["quats"][:, 0] = 0.0
        parts["means2d"][:, 1] = 0.0
        return parts


def _integers(view: int, step: int, number: Tensor, columns: int) -> Tensor:
    """(R, columns) float32 in -3..3 by a hash of the four indices."""
    key = number[:, None] * 0x9E3779B1 + torch.arange(columns) * 0x85EBCA77
    key = key + (view * 0xC2B2AE3D + step * 0x27D4EB2F + 1)
    for multiplier in (0x7FEB352D, 0x846CA68B):
        key = key & 0xFFFFFFFF
        key = (key ^ (key >> 16)) * multiplier
    key = (key & 0xFFFFFFFF) >> 9
    return (key % 7 - 3).float()


def _pixels(means: Tensor, view: View) -> tuple[Tensor, Tensor]:
    """(R, 2) pixels and (R,) depths."""
    at = means @ view.viewmat[:3, :3].T + view.viewmat[:3, 3]
    depth = at[:, 2]
    return (at @ view.K.T)[:, :2] / depth.clamp_min(1e-3)[:, None], depth


def _lies_inside(means: Tensor, view: View) -> Tensor:
    pixels, depth = _pixels(means, view)
    size = torch.tensor([view.width, view.height])
    inside = (pixels > _MARGIN * size) & (pixels < (1.0 - _MARGIN) * size)
    return inside.all(1) & (depth > 0.5)


@dataclass
class ScriptedSplats(Splats):
    """Splats that know where they come from."""

    rows: Mapping[str, Tensor] | None = None
    gradients: Mapping[str, Tensor] | None = None


class ScriptedRenderer:
    """A `gs_train.renderers.Renderer` that follows a script.

    Each row's gradient arises in the crop that holds its centre, as if it were one pixel wide.

    Attributes:
        step: what the script is asked for; the test counts it up.
        before: called with (view, rect) before a rectangle is drawn; may raise.
        projected: called with the splats of each projection.
        drawn: (view name, rect, rows) of every rectangle drawn.
        products: by (step, view name), see `product`: gradients do not depend on rows' values,
            so these say whether the rows that came were the right ones.
    """

    name = "scripted"
    blends_by_key = False
    device = torch.device("cpu")
    options = RenderOptions()

    def __init__(self, script: Script) -> None:
        self._script = script
        self.step = 0
        self.before: Callable[[View, Rect], None] = lambda view, rect: None
        self.projected: Callable[[ScriptedSplats], None] = lambda splats: None
        self.drawn: list[tuple[str, Rect, int]] = []
        self.products: dict[tuple[int, str], Tensor] = {}

    def project(
        self, rows: Rows, view: View, *, sh_degree: int, keys: Tensor | None = None
    ) -> ScriptedSplats:
        number = numbers(rows["quats"])
        n = len(number)
        means2d, depths = _pixels(rows["means"].detach(), view)
        radii = self._script.shown(view, number).int()[:, None].expand(n, 2).contiguous()
        splats = ScriptedSplats(
            means2d=means2d.requires_grad_(),
            conics=torch.ones(n, 3),
            depths=depths,
            radii=radii,
            opacities=torch.ones(n),
            colors=torch.ones(n, 3),
            view=view,
            rows=rows,
            gradients=self._script.gradients(view, number, self.step),
        )
        self.projected(splats)
        return splats

    def rasterize(self, splats: Splats, rect: Rect | None = None) -> tuple[Tensor, Tensor]:
        assert isinstance(splats, ScriptedSplats)
        assert splats.rows is not None
        assert splats.gradients is not None
        view = splats.view
        rect = rect or view.rect
        self.before(view, rect)
        self.drawn.append((view.name, rect, len(splats.depths)))
        has = _owned(splats.means2d.detach(), rect, view)[:, None]
        leaves = {**splats.rows, "means2d": splats.means2d}
        gradients = [
            (splats.gradients[name] * has).view(leaf.shape) for name, leaf in leaves.items()
        ]
        key = self.step, view.name
        told = dict(zip(leaves, gradients, strict=True))
        self.products[key] = self.products.get(key, 0.0) + product(told, splats.rows)
        # A picture that is not flat: crops that are cut in the wrong place show in the loss.
        x, y = torch.arange(rect.x0, rect.x1), torch.arange(rect.y0, rect.y1)
        wave = torch.sin(0.3 * x) * torch.cos(0.2 * y)[:, None]
        picture = (0.5 + 0.4 * wave)[..., None].expand(-1, -1, 3).contiguous()
        image = _Picture.apply(picture, gradients, *leaves.values())
        return image, torch.ones(rect.height, rect.width, 1)


def product(gradients: Mapping[str, Tensor], rows: Rows) -> Tensor:
    """(2,) float64: the inner product of gradients and values of appearance, and of magnitudes."""
    terms = [
        (gradients[name].flatten(1) * rows[name].detach().flatten(1)).double()
        for name in ("sh0", "shN")
    ]
    return torch.stack([sum(t.sum() for t in terms), sum(t.abs().sum() for t in terms)])


class _Picture(torch.autograd.Function):
    """A picture whose backward pass gives the leaves the gradients it was told."""

    @staticmethod
    def forward(ctx: Any, picture: Tensor, gradients: list[Tensor], *leaves: Tensor) -> Tensor:
        ctx.gradients = gradients
        return picture

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *(gradient.clone() for gradient in ctx.gradients))


def _owned(means2d: Tensor, rect: Rect, view: View) -> Tensor:
    """(R,) bool: the centre, or the pixel of the view next to it, is in the core of ``rect``."""
    x0 = rect.x0 + HALO if rect.x0 else 0
    y0 = rect.y0 + HALO if rect.y0 else 0
    x1 = rect.x1 - HALO if rect.x1 < view.width else view.width
    y1 = rect.y1 - HALO if rect.y1 < view.height else view.height
    x = means2d[:, 0].floor().clamp(0, view.width - 1)
    y = means2d[:, 1].floor().clamp(0, view.height - 1)
    return (x >= x0) & (x < x1) & (y >= y0) & (y < y1)
