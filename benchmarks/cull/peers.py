# SPDX-License-Identifier: Apache-2.0
"""How visible sets are found without gs-cull: gsplat's projection, and plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from workloads import City, Flight

CHUNK = 4_000_000


def gsplat_projection(scene: City, views: Flight, view: int) -> Tensor:
    """(N,) bool: radii > 0 of gsplat's fused kernel, as rendering codes use it for culling."""
    from gsplat import fully_fused_projection

    radii, *_ = fully_fused_projection(
        scene.means,
        None,
        scene.quats,
        scene.scales.exp(),
        views.viewmats[view : view + 1],
        views.Ks[view : view + 1],
        views.width,
        views.height,
        opacities=scene.opacities.sigmoid(),
    )
    return (radii[0] > 0).all(-1)


def gsplat_reference(scene: City, views: Flight, view: int) -> Tensor:
    """(N,) bool: radii > 0 of gsplat's torch code. It knows no opacities."""
    from gsplat.cuda import _torch_impl as gsplat

    covars, _ = gsplat._quat_scale_to_covar_preci(scene.quats, scene.scales.exp(), True, False)
    radii, *_ = gsplat._fully_fused_projection(
        scene.means,
        covars,
        views.viewmats[view : view + 1],
        views.Ks[view : view + 1],
        views.width,
        views.height,
    )
    return (radii[0] > 0).all(-1)


def plain_torch(scene: City, views: Flight, view: int) -> Tensor:
    """(N,) bool: the same projection written for speed in torch, some rows at a time."""
    n = len(scene.means)
    return torch.cat(
        [_plain_chunk(scene, views, view, slice(i, i + CHUNK)) for i in range(0, n, CHUNK)]
    )


def _plain_chunk(scene: City, views: Flight, view: int, rows: slice) -> Tensor:
    pose, K = views.viewmats[view], views.Ks[view]
    x, y, z = (scene.means[rows] @ pose[:3, :3].T + pose[:3, 3]).unbind(1)
    fx, fy, cx, cy = K[0, 0], K[1, 1], K[0, 2], K[1, 2]
    width, height = views.width, views.height
    inverse = 1 / z
    tan_x, tan_y = 0.15 * width / fx, 0.15 * height / fy
    tx = (x * inverse).clamp(-cx / fx - tan_x, (width - cx) / fx + tan_x)
    ty = (y * inverse).clamp(-cy / fy - tan_y, (height - cy) / fy + tan_y)
    zero = torch.zeros_like(z)
    # Rows of the Jacobian in the world, then in the Gaussian's own axes.
    u = torch.stack([fx * inverse, zero, -fx * inverse * tx], 1) @ pose[:3, :3]
    v = torch.stack([zero, fy * inverse, -fy * inverse * ty], 1) @ pose[:3, :3]
    w, a, b, c = torch.nn.functional.normalize(scene.quats[rows]).unbind(1)
    axes = torch.stack(
        [
            1 - 2 * (b * b + c * c), 2 * (a * b - w * c), 2 * (a * c + w * b),
            2 * (a * b + w * c), 1 - 2 * (a * a + c * c), 2 * (b * c - w * a),
            2 * (a * c - w * b), 2 * (b * c + w * a), 1 - 2 * (a * a + b * b),
        ],
        1,
    ).view(-1, 3, 3)  # fmt: skip
    axes = axes * scene.scales[rows].exp()[:, None]
    variance_u = torch.einsum("ni,nij->nj", u, axes).square().sum(1) + 0.3
    variance_v = torch.einsum("ni,nij->nj", v, axes).square().sum(1) + 0.3
    opacity = scene.opacities[rows].sigmoid()
    extent = (2 * (opacity * 255).clamp_min(1).log()).sqrt().clamp_max(3.33)
    rx, ry = (extent * variance_u.sqrt()).ceil(), (extent * variance_v.sqrt()).ceil()
    px, py = fx * x * inverse + cx, fy * y * inverse + cy
    seen = (z >= 0.01) & (opacity >= 1 / 255)
    seen &= (px + rx > 0) & (px - rx < width) & (py + ry > 0) & (py - ry < height)
    return seen
