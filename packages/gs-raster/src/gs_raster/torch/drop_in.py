# SPDX-License-Identifier: Apache-2.0
"""gsplat 1.5.3's ``rasterization`` by this package's stages."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from gs_raster.cuda.sorting import TILE
from gs_raster.torch.cameras import Cameras, MeansOfCameras
from gs_raster.torch.rasterize import Image, ProjectedSplats, project, rasterize
from gs_raster.torch.stored import stored_rows
from gs_raster.types import Options

RenderMode = Literal["RGB", "D", "ED", "RGB+D", "RGB+ED"]
_MODES = ("RGB", "D", "ED", "RGB+D", "RGB+ED")


def rasterization(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colors: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    eps2d: float = 0.3,
    sh_degree: int | None = None,
    packed: bool = True,
    tile_size: int = 16,
    backgrounds: Tensor | None = None,
    render_mode: RenderMode = "RGB",
    sparse_grad: bool = False,
    absgrad: bool = False,
    rasterize_mode: Literal["classic", "antialiased"] = "classic",
    channel_chunk: int = 32,
    distributed: bool = False,
    camera_model: Literal["pinhole", "ortho", "fisheye", "ftheta"] = "pinhole",
    segmented: bool = False,
    covars: Tensor | None = None,
    with_ut: bool = False,
    with_eval3d: bool = False,
    radial_coeffs: Tensor | None = None,
    tangential_coeffs: Tensor | None = None,
    thin_prism_coeffs: Tensor | None = None,
    ftheta_coeffs: Any = None,
    rolling_shutter: Any = None,
    viewmats_rs: Tensor | None = None,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Draw N Gaussians into C pinhole images, with the arguments and results of
    ``gsplat.rasterization`` (gsplat 1.5.3).

    Args:
        means: (N, 3).
        quats: (N, 4) w x y z, not necessarily normalised.
        scales: (N, 3), not logarithms.
        opacities: (N,) in [0, 1].
        colors: (N, 3) or (C, N, 3) RGB; with ``sh_degree`` (N, K, 3) or (C, N, K, 3) spherical
            harmonics, ``(sh_degree + 1)^2 <= K``.
        viewmats: (C, 4, 4) world to camera, without gradient.
        Ks: (C, 3, 3).
        width, height: pixels.
        near_plane, far_plane, radius_clip, eps2d, rasterize_mode: as
            :class:`gs_raster.Options`.
        sh_degree: 0 to 3; None: ``colors`` are colours.
        packed: whether ``info`` lists rows that show alone.
        backgrounds: (C, 3); None for black.
        render_mode: RGB, D (sum of weight times depth), ED (the same by alpha), or both.
        absgrad: leave the sums of absolute gradients in ``info["means2d"].absgrad``.
        channel_chunk, segmented: without effect.
        tile_size, sparse_grad, distributed, camera_model, covars, with_ut, with_eval3d,
            radial_coeffs, tangential_coeffs, thin_prism_coeffs, ftheta_coeffs, rolling_shutter,
            viewmats_rs: must have the defaults.

    Returns:
        Images (C, height, width, X), alphas (C, height, width, 1), and ``info`` as gsplat's, except
        that splats of equal depth come in the order of the rows, that ``tiles_per_gauss``,
        ``flatten_ids`` and ``isect_offsets`` leave out tiles that a splat's ellipse does not meet,
        and without ``isect_ids``, the keys of gsplat's sort.

    Raises:
        NotImplementedError: an argument asks for more, which is named.
        TypeError, ValueError, CudaError: as :class:`gs_raster.Rows` and :func:`gs_raster.project`.

    Cost: scales and opacities become logarithms and logits by torch operations first. ``project``
        and ``rasterize`` of this module take stored values as they are. One camera after another;
        waits for the device once for each camera, and once more for each with ``packed``.
    """
    _refuse(
        tile_size=tile_size == 16,
        sparse_grad=not sparse_grad,
        distributed=not distributed,
        camera_model=camera_model == "pinhole",
        covars=covars is None,
        with_ut=not with_ut,
        with_eval3d=not with_eval3d,
        radial_coeffs=radial_coeffs is None,
        tangential_coeffs=tangential_coeffs is None,
        thin_prism_coeffs=thin_prism_coeffs is None,
        ftheta_coeffs=ftheta_coeffs is None,
        rolling_shutter=rolling_shutter is None or rolling_shutter.name == "GLOBAL",
        viewmats_rs=viewmats_rs is None,
    )
    if render_mode not in _MODES:
        raise ValueError(f"render_mode must be one of {', '.join(_MODES)}, got {render_mode!r}")
    if rasterize_mode not in ("classic", "antialiased"):
        raise ValueError(f"rasterize_mode must be classic or antialiased, got {rasterize_mode!r}")
    options = Options(
        rasterize_mode == "antialiased", eps2d, near_plane, far_plane, radius_clip
    ).checked()
    cameras = Cameras(viewmats, Ks, width, height, backgrounds)
    rows = stored_rows(means, quats, scales, opacities, colors, sh_degree, len(cameras))
    projected = [
        project(rows.of(c), view, sh_degree=rows.sh_degree, options=options, radii=True)
        for c, view in enumerate(cameras.views)
    ]
    for c, splats in enumerate(projected):
        if sh_degree is None:
            splats.colors = rows.colors_of(c)
    together = MeansOfCameras(projected, packed=packed)
    wants_depth = render_mode != "RGB"
    images = [
        rasterize(
            splats,
            background=cameras.background(c) if "RGB" in render_mode else None,
            depth=wants_depth,
            absgrad=absgrad,
        )
        for c, splats in enumerate(together.splats)
    ]
    alphas = torch.stack([image.alpha for image in images])
    pictures = torch.stack([_channels(image, render_mode) for image in images])
    info = together.info() | _tiles(together.splats, images, packed=packed)
    info |= {"width": width, "height": height, "tile_size": TILE}
    info |= {"n_batches": 1, "n_cameras": len(cameras)}
    return pictures, alphas, info


def _refuse(**are_supported: bool) -> None:
    for name, is_supported in are_supported.items():
        if not is_supported:
            raise NotImplementedError(
                f"{name} must have gsplat's default: gs-raster draws pinhole images of "
                "Gaussians on one device"
            )


def _channels(image: Image, mode: str) -> Tensor:
    depth = image.depth
    if depth is not None and mode.endswith("ED"):
        depth = depth / image.alpha.clamp(min=1e-10)
    if mode == "RGB" or depth is None:
        return image.image
    return torch.cat([image.image, depth], -1) if mode.startswith("RGB") else depth


def _tiles(splats: list[ProjectedSplats], images: list[Image], *, packed: bool) -> dict[str, Any]:
    """What gsplat tells of tiles: of all cameras' splats together, one camera after another."""
    view = splats[0].view
    columns, rows = -(-view.width // TILE), -(-view.height // TILE)
    listed, begins, n_splats, n_instances = [], [], 0, 0
    for one, image in zip(splats, images, strict=True):
        listed.append(image.lists.splats + n_splats)
        begins.append(image.lists.begins[:-1].reshape(rows, columns) + n_instances)
        n_splats += len(one.records)
        n_instances += image.lists.n_instances
    counts = [image.lists.counts for image in images]
    return {
        "tile_width": columns,
        "tile_height": rows,
        "tiles_per_gauss": torch.cat(counts) if packed else torch.stack(counts),
        "flatten_ids": torch.cat(listed),
        "isect_offsets": torch.stack(begins),
    }
