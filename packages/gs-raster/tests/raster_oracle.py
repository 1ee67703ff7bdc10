# SPDX-License-Identifier: Apache-2.0
"""What the stages are compared with: gsplat's torch projection, then plain compositing.

Everything is float64 torch autograd. gsplat's torch projection differs from its CUDA kernels, whose
semantics count, in what follows; the oracle takes the CUDA side of each:

- extents: torch uses 3.33 sigma, CUDA min(3.33, sqrt(2 ln(255 opacity))) sigma, and CUDA hides rows
  whose (compensated) opacity is below 1/255 or whose extent is at most ``radius_clip``;
- near and far: torch excludes both bounds, CUDA includes them;
- determinants: torch clamps at 1e-10, CUDA hides rows with det <= 0 (none here: eps2d > 0);
- compensation: CUDA's gradient divides by (compensation + 1e-6), torch's by compensation. A row
  that shows has a compensation of at least 1/255, so they differ by at most 1e-6 * 255 = 2.6e-4.

The compositing visits all rows in order of depth for every pixel, without tiles and extents: beyond
its extent a row's alpha is below 1/255, so the extents change nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gs_raster import Rect
from gs_raster.cpu import Camera, Rows

ATTRIBUTES = Rows._fields


class View(NamedTuple):
    """A pinhole view: ``viewmat`` (4, 4) world to camera and ``K`` (3, 3)."""

    viewmat: Tensor
    K: Tensor
    width: int
    height: int

    @property
    def camera(self) -> Camera:
        return Camera.of(self.viewmat.numpy(), self.K.numpy(), self.width, self.height)

    @property
    def rect(self) -> Rect:
        return Rect(0, 0, self.width, self.height)


@dataclass
class Projected:
    """As ``gs_raster.cpu.Splats``, in float64."""

    means2d: Tensor
    conics: Tensor
    depths: Tensor
    radii: Tensor
    opacities: Tensor
    colors: Tensor

    @property
    def shown(self) -> Tensor:
        return (self.radii > 0).all(-1)


@dataclass
class Composited:
    """image (h, w, 3), alpha (h, w, 1); finished (h, w): transmittance ran out; margin (h, w): how
    far, relatively, the pixel's closest comparison of an alpha or a transmittance with its
    threshold was from tipping over."""

    image: Tensor
    alpha: Tensor
    finished: Tensor
    margin: Tensor


def leaves(rows: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Copies that collect gradients."""
    return {k: v.detach().to(dtype).clone().requires_grad_() for k, v in rows.items()}


def project(
    rows: dict[str, Tensor],
    view: View,
    *,
    sh_degree: int,
    antialiased: bool = False,
    radius_clip: float = 0.0,
    near: float = 0.01,
    far: float = 1e10,
) -> Projected:
    from gsplat.cuda._torch_impl import (
        _fully_fused_projection,
        _quat_scale_to_covar_preci,
        _spherical_harmonics,
    )

    viewmat, K = view.viewmat.double()[None], view.K.double()[None]
    scales = rows["scales"].exp()
    covars, _ = _quat_scale_to_covar_preci(rows["quats"], scales, compute_preci=False)
    _, means2d, depths, conics, compensations = _fully_fused_projection(
        rows["means"], covars, viewmat, K, view.width, view.height, calc_compensations=antialiased
    )
    means2d, depths, conics = means2d[0], depths[0], conics[0]
    opacities = rows["opacities"].sigmoid()
    if antialiased:
        opacities = opacities * compensations[0]
    centre = torch.linalg.inv(viewmat[0])[:3, 3]
    sh = torch.cat([rows["sh0"], rows["shN"]], 1)[:, : (sh_degree + 1) ** 2]
    colors = (_spherical_harmonics(sh_degree, rows["means"] - centre, sh) + 0.5).clamp_min(0.0)

    with torch.no_grad():
        det = conics[:, 0] * conics[:, 2] - conics[:, 1] ** 2
        variances = conics[:, [2, 0]] / det[:, None]
        extent = (2.0 * (255.0 * opacities).log()).sqrt().clamp_max(3.33)
        radii = (extent[:, None] * variances.sqrt()).ceil()
        size = torch.tensor([view.width, view.height])
        shown = (opacities >= 1.0 / 255.0) & (depths >= near) & (depths <= far)
        shown &= (radii > radius_clip).any(-1)
        shown &= ((means2d + radii > 0) & (means2d - radii < size)).all(-1)
        radii = torch.where(shown[:, None], radii, 0.0).int()
    return Projected(means2d, conics, depths, radii, opacities, colors)


def composite(splats: Projected, width: int, height: int) -> Composited:
    y = torch.arange(height, dtype=torch.float64)[:, None] + 0.5
    x = torch.arange(width, dtype=torch.float64)[None, :] + 0.5
    T = torch.ones(height, width, dtype=torch.float64)
    image = torch.zeros(height, width, 3, dtype=torch.float64)
    finished = torch.zeros(height, width, dtype=torch.bool)
    margin = torch.full((height, width), math.inf, dtype=torch.float64)
    shown = splats.shown.nonzero()[:, 0]
    for i in shown[splats.depths[shown].argsort(stable=True)].tolist():
        dx, dy = splats.means2d[i, 0] - x, splats.means2d[i, 1] - y
        a, b, c = splats.conics[i]
        sigma = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
        alpha = (splats.opacities[i] * (-sigma).exp()).clamp_max(0.999)
        seen = ~finished & (sigma >= 0) & (alpha >= 1.0 / 255.0)
        after = T * (1.0 - alpha)
        with torch.no_grad():
            near_cut = torch.where(finished, math.inf, (255.0 * alpha - 1.0).abs())
            near_stop = torch.where(seen, (1e4 * after - 1.0).abs(), math.inf)
            margin = margin.minimum(near_cut).minimum(near_stop)
        drawn = seen & (after > 1e-4)
        finished = finished | (seen & (after <= 1e-4))
        image = image + torch.where(drawn, alpha * T, 0.0)[..., None] * splats.colors[i]
        T = torch.where(drawn, after, T)
    return Composited(image, (1.0 - T)[..., None], finished, margin)


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
    return View(viewmat, K, width, height)


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
