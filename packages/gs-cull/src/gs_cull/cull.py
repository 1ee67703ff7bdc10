# SPDX-License-Identifier: Apache-2.0
"""The visible sets of a batch of views."""

from __future__ import annotations

from typing import Any

from gs_cull import _core
from gs_cull.arrays import Array, Geometry, check_kind, fill_at, native, zeros
from gs_cull.blocks import Blocks
from gs_cull.cameras import Cameras
from gs_cull.checks import shown
from gs_cull.options import CameraModelName, Inflate
from gs_cull.request import check_request
from gs_cull.resident import ResidentBlocks
from gs_cull.visibility import Visibility


def cull(
    means: Array,
    scales: Array,
    quats: Array,
    viewmats: Array,
    Ks: Array,
    width: Any,
    height: Any,
    *,
    opacities: Array | None = None,
    near: float = 0.01,
    far: float = 1e10,
    eps2d: float = 0.3,
    radius_clip: float = 0.0,
    camera_model: CameraModelName = "pinhole",
    activated: bool = False,
    antialiased: bool = False,
    rects: Any = None,
    inflate: Inflate | None = None,
    blocks: Blocks | ResidentBlocks | None = None,
) -> Visibility:
    """Find which Gaussians each view sees.

    A Gaussian is visible exactly when gsplat 1.5.3's projection gives it ``radii > 0`` on the same
    inputs. Where float32 rounding decides that (a mean on the near plane, a box that ends at the
    image border), it is kept: the set is never smaller than gsplat's, however gsplat was compiled.

    Args:
        means: (N, 3) float32, contiguous, N < 2^31 - 1. numpy, or torch on the CPU or on CUDA.
        scales: (N, 3) float32, logarithms unless ``activated``.
        quats: (N, 4) float32, w x y z of any length but 0; rows with a zero quaternion are never
            visible, as in gsplat's kernels.
        viewmats: (B, 4, 4) world to camera, x right, y down, z forward. Floating point; used as
            float32.
        Ks: (B, 3, 3) pixels. Skew is ignored, as in gsplat's kernels.
        width, height: pixels, one int or (B,) ints.
        opacities: (N,) float32, logits unless ``activated``; None draws every box at 3.33 sigma.
        near, far: depth limits; near must be positive for pinhole cameras.
        eps2d: blur added to the 2D covariance, pixels^2.
        radius_clip: drop rows whose box is at most this many pixels wide and high.
        camera_model: pinhole, ortho or fisheye, as gsplat defines them.
        activated: scales and opacities are given as gsplat's ``rasterization`` takes them.
        antialiased: opacities are compensated for the blur, which makes boxes smaller.
        rects: (B, 4) ints x0, y0, x1, y1: views are crops. The whole view's camera projects, and of
            the visible rows those remain whose box meets the rectangle.
        inflate: keep every row that could become visible when no component moves further than this:
            a superset that stays valid for the next optimizer step.
        blocks: bounds of these rows, as they are now within their slack: only blocks near a view's
            frustum are looked at, and the result is the same.

    Returns:
        A :class:`Visibility` of the same kind of arrays, on the same device.

    Raises:
        TypeError: a dtype differs, or numpy and torch are mixed.
        ValueError: shapes or devices disagree, an array has gaps, a number is out of range, a pose
            is not finite, intrinsics are singular.
        CudaError: CUDA tensors reached a build without CUDA, or a launch failed.

    Asynchrony: on CUDA everything is enqueued on torch's current stream, and the host waits once,
        for that stream alone, to learn the size of the result: call it on a stream of its own to
        cull the next batch while this one renders. All memory comes from torch: 4 bytes per 32
        rows, then the result.
    Cost: N * (24 bytes + B * 6 planes), or that of the rows in blocks near a frustum and a bit per
        row; quats and opacities are read for rows near a frustum only.
        The GIL is released. Thread-safe.

    >>> import numpy as np
    >>> means = np.array([[0, 0, 5], [0, 0, -5]], np.float32)
    >>> quats = np.array([[1, 0, 0, 0]] * 2, np.float32)
    >>> K = np.array([[[100, 0, 50], [0, 100, 50], [0, 0, 1]]])
    >>> cull(means, np.zeros_like(means), quats, np.eye(4)[None], K.astype(float), 100, 100).ids
    array([0], dtype=int32)
    """
    geometry = (means, scales, quats, opacities)
    cameras, options = check_request(
        geometry,
        viewmats,
        Ks,
        width,
        height,
        rects,
        near=near,
        far=far,
        eps2d=eps2d,
        radius_clip=radius_clip,
        camera_model=camera_model,
        activated=activated,
        antialiased=antialiased,
        inflate=inflate,
    )
    return cull_checked(geometry, cameras, options, blocks, activated)


def cull_checked(
    geometry: Geometry,
    cameras: Cameras,
    options: _core.Options,
    blocks: Any,
    activated: bool,
) -> Visibility:
    """As :func:`cull`, of arrays of one kind."""
    means, layout = geometry[0], None
    if blocks is not None:
        if not isinstance(blocks, Blocks | ResidentBlocks):
            raise TypeError(f"blocks must be Blocks or ResidentBlocks, got {shown(blocks)}")
        check_kind(means=means, blocks=blocks.scale)
        if blocks.activated != activated:
            raise ValueError(f"blocks must be built with activated={activated}, got the opposite")
        layout = blocks.layout(means)
    ids, mask, counts, n_not_finite = native(means).cull(geometry, cameras, options, layout)
    return Visibility(ids, mask, counts, n_not_finite)


def visible_ids(
    means: Array,
    scales: Array,
    quats: Array,
    viewmat: Array,
    K: Array,
    width: int,
    height: int,
    **options: Any,
) -> Array:
    """The sorted ids that one view sees: (V,) int32.

    Args:
        viewmat: (4, 4). K: (3, 3). All others, and what is raised, as in :func:`cull`.
    """
    check_kind(means=means, viewmat=viewmat, K=K)
    return cull(means, scales, quats, viewmat[None], K[None], width, height, **options).ids


def visible_mask(
    means: Array,
    scales: Array,
    quats: Array,
    viewmat: Array,
    K: Array,
    width: int,
    height: int,
    **options: Any,
) -> Array:
    """Whether one view sees each row: (N,) bool. Arguments as in :func:`visible_ids`."""
    ids = visible_ids(means, scales, quats, viewmat, K, width, height, **options)
    mask = zeros(means, (len(means),), "bool")
    fill_at(mask, ids, True)
    return mask
