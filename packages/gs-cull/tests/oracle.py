# SPDX-License-Identifier: Apache-2.0
"""gsplat's projection in plain torch, with the rules of its CUDA kernel for what gets a radius."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gsplat.cuda import _torch_impl as gsplat

ALPHA_THRESHOLD = 1 / 255


@dataclass
class Scene:
    """float32 arrays as a trainer holds them, and views."""

    means: np.ndarray
    scales: np.ndarray
    quats: np.ndarray
    opacities: np.ndarray | None
    viewmats: np.ndarray
    Ks: np.ndarray
    width: int
    height: int

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The positional arguments of ``cull``."""
        views = (self.viewmats, self.Ks, self.width, self.height)
        return (self.means, self.scales, self.quats, *views)


@dataclass
class Boxes:
    """Where splats are, as gsplat's kernel computes it: (B, N) each."""

    visible: torch.Tensor
    u: torch.Tensor
    v: torch.Tensor
    rx: torch.Tensor
    ry: torch.Tensor


def project(
    scene: Scene,
    dtype: torch.dtype,
    *,
    near: float = 0.01,
    far: float = 1e10,
    eps2d: float = 0.3,
    radius_clip: float = 0.0,
    camera_model: str = "pinhole",
    antialiased: bool = False,
    activated: bool = False,
    band: float = 0.0,
) -> Boxes:
    """Every row in every view, in the given precision, from the same float32 inputs.

    gsplat's own torch functions transform and project; near and far, the opacity-aware extent, the
    compensation, radius_clip and the image bounds follow ProjectionEWA3DGSFused.cu, which the torch
    projection leaves out or treats at the limits in another way. With ``band`` every threshold is
    relaxed by that relative amount, and positions by what an error of it in the mean's camera
    coordinates makes on screen.
    """

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(dtype)

    # What reaches gsplat is float32, whatever precision follows.
    scales = torch.from_numpy(scene.scales)
    scales = (scales if activated else scales.exp()).to(dtype)
    covars, _ = gsplat._quat_scale_to_covar_preci(tensor(scene.quats), scales, True, False)
    means_c, covars_c = gsplat._world_to_cam(tensor(scene.means), covars, tensor(scene.viewmats))
    model = {
        "pinhole": gsplat._persp_proj,
        "ortho": gsplat._ortho_proj,
        "fisheye": gsplat._fisheye_proj,
    }[camera_model]
    means2d, cov = model(means_c, covars_c, tensor(scene.Ks), scene.width, scene.height)
    a, b, c = cov[..., 0, 0], cov[..., 0, 1], cov[..., 1, 1]
    det_before = a * c - b * b
    a, c = a + eps2d, c + eps2d
    det = a * c - b * b
    z = means_c[..., 2]
    error = band * (
        tensor(scene.means).norm(dim=-1) + tensor(scene.viewmats)[:, :3, 3:].norm(dim=1)
    )
    visible = (z + error >= near) & (z - error <= far) & (det > 0)
    # Rounding of a covariance is relative to its largest eigenvalue, not to its result, and that of
    # the depth to the distance from the origin.
    largest = 4 * scales.amax(-1).square() * tensor(scene.Ks)[:, 0, 0, None].square()
    depth_noise = torch.zeros_like(z)
    if camera_model != "ortho":
        depth = (z.abs() - error).clamp_min(near)
        largest = largest / depth.square()
        depth_noise = error / depth
    extent = torch.full_like(z, 3.33)
    if scene.opacities is not None:
        opacities = torch.from_numpy(scene.opacities)
        opacity = (opacities if activated else opacities.sigmoid()).to(dtype).expand_as(z)
        if antialiased:
            noise = (4 * band + 8 * depth_noise) * (a + largest / 4) * (c + largest / 4)
            ratio = (det_before + noise) / (det - noise).clamp_min(1e-30)
            opacity = opacity * ratio.clamp_min(0).sqrt()
        opacity = opacity * (1 + band)
        visible &= ~(opacity < ALPHA_THRESHOLD)
        wanted = (2 * (opacity / ALPHA_THRESHOLD).clamp_min(1).log()).sqrt()
        # Just above the threshold the kernel's fast logarithm may come out negative; the root is
        # then NaN and the extent 3.33.
        wanted = torch.where(opacity < ALPHA_THRESHOLD * (1 + 3 * band), extent, wanted)
        extent = torch.minimum(extent, wanted)
    rx = (extent * ((a + band * largest).sqrt() * (1 + band) + depth_noise * largest.sqrt())).ceil()
    ry = (extent * ((c + band * largest).sqrt() * (1 + band) + depth_noise * largest.sqrt())).ceil()
    u, v = means2d.unbind(-1)
    visible &= ~((rx <= radius_clip) & (ry <= radius_clip))
    per_unit = tensor(scene.Ks)[:, 0, 0, None] * 4
    if camera_model != "ortho":
        per_unit = per_unit / (z.abs() - error).clamp_min(near)
        away = torch.hypot(u - scene.width / 2, v - scene.height / 2) / scene.width + 1
        per_unit = per_unit * away
    slack = error * per_unit + band * (u.abs() + v.abs() + scene.width + rx + ry)
    visible &= (u + rx + slack > 0) & (u - rx - slack < scene.width)
    visible &= (v + ry + slack > 0) & (v - ry - slack < scene.height)
    return Boxes(visible, u, v, rx, ry)


def compare(scene: Scene, visibility: Any, **options: Any) -> int:
    """Assert that nothing that gsplat draws is missing and that extras lie in the rounding band.

    Returns:
        The number of extras over gsplat's exact answer, to be reported.
    """
    ours = torch.from_numpy(seen_by(visibility, len(scene.means)))
    exact = project(scene, torch.float64, **options).visible
    for dtype, theirs in (
        (torch.float32, project(scene, torch.float32, **options).visible),
        (torch.float64, exact),
    ):
        missed = int((theirs & ~ours).sum())
        assert missed == 0, f"{missed} of {int(theirs.sum())} missed in {dtype}"
    # 2e-5 is the largest of the package's rounding constants.
    beyond = ours & ~project(scene, torch.float64, band=2e-5, **options).visible
    assert not beyond.any(), f"{int(beyond.sum())} extras beyond the rounding band"
    assert visibility.counts.tolist() == ours.sum(1).tolist()
    return int((ours & ~exact).sum())


def seen_by(visibility: Any, n_rows: int) -> np.ndarray:
    """(B, N) booleans of a Visibility."""
    seen = np.zeros((visibility.n_views, n_rows), bool)
    for i in range(visibility.n_views):
        ids = visibility.view(i)
        seen[i, ids if isinstance(ids, np.ndarray) else ids.cpu().numpy()] = True
    return seen


def random_rotation(rng: np.random.Generator, n: int) -> np.ndarray:
    """(n, 3, 3) uniform rotations."""
    matrices, _ = np.linalg.qr(rng.normal(size=(n, 3, 3)))
    return matrices * np.sign(np.linalg.det(matrices))[:, None, None]


def random_scene(
    seed: int,
    n: int,
    n_views: int,
    *,
    spread: float = 5.0,
    log_scale: tuple[float, float] = (-3.0, 1.0),
    width: int = 640,
    height: int = 460,
    opacity: bool = True,
) -> Scene:
    """Gaussians around the origin, cameras among them."""
    rng = np.random.default_rng(seed)
    viewmats = np.tile(np.eye(4), (n_views, 1, 1))
    viewmats[:, :3, :3] = random_rotation(rng, n_views)
    viewmats[:, :3, 3] = rng.normal(size=(n_views, 3)) * spread * 0.6
    focal = rng.uniform(0.5, 1.5, size=(n_views, 2)) * width
    Ks = np.zeros((n_views, 3, 3))
    Ks[:, 0, 0], Ks[:, 1, 1], Ks[:, 2, 2] = focal[:, 0], focal[:, 1], 1
    Ks[:, 0, 2] = width / 2 + rng.normal(size=n_views) * 10
    Ks[:, 1, 2] = height / 2 + rng.normal(size=n_views) * 10
    return Scene(
        means=(rng.normal(size=(n, 3)) * spread).astype(np.float32),
        scales=rng.normal(*log_scale, size=(n, 3)).astype(np.float32),
        quats=rng.normal(size=(n, 4)).astype(np.float32),
        opacities=(rng.normal(size=n) * 3).astype(np.float32) if opacity else None,
        viewmats=viewmats.astype(np.float32),
        Ks=Ks.astype(np.float32),
        width=width,
        height=height,
    )
