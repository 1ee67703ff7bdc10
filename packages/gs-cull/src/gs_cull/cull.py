# SPDX-License-Identifier: Apache-2.0
"""The visible sets of a batch of views."""

from __future__ import annotations

from typing import Any

import numpy as np

from gs_cull import _core
from gs_cull.arrays import Array, check_kind
from gs_cull.cameras import Cameras, check_cameras
from gs_cull.options import CameraModelName, Inflate, native_options
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

    Returns:
        A :class:`Visibility` of the same kind of arrays, on the same device.

    Raises:
        TypeError: a dtype differs, or numpy and torch are mixed.
        ValueError: shapes or devices disagree, an array has gaps, a number is out of range, a pose
            is not finite, intrinsics are singular.
        CudaError: CUDA tensors reached a build without CUDA, or a launch failed.

    Asynchrony: on CUDA everything is enqueued on torch's current stream, with one synchronisation
        to learn the size of the result. All memory comes from torch: 4 bytes per 32 rows, then the
        result.
    Cost: N * (24 bytes + B * 6 planes); quats and opacities are read for rows near a frustum only.
        The GIL is released. Thread-safe.

    >>> means = np.array([[0, 0, 5], [0, 0, -5]], np.float32)
    >>> quats = np.array([[1, 0, 0, 0]] * 2, np.float32)
    >>> K = np.array([[[100, 0, 50], [0, 100, 50], [0, 0, 1]]])
    >>> cull(means, np.zeros_like(means), quats, np.eye(4)[None], K.astype(float), 100, 100).ids
    array([0], dtype=int32)
    """
    torch_in = check_kind(
        means=means, scales=scales, quats=quats, viewmats=viewmats, Ks=Ks, opacities=opacities
    )
    cameras = check_cameras(viewmats, Ks, width, height, rects)
    options = native_options(
        near=near,
        far=far,
        eps2d=eps2d,
        radius_clip=radius_clip,
        camera_model=camera_model,
        activated=activated,
        antialiased=antialiased,
        inflate=inflate,
    )
    geometry = (means, scales, quats, opacities)
    if torch_in and means.device.type != "cpu":
        from gs_cull.cull_cuda import cull_cuda

        return cull_cuda(geometry, cameras, options)
    return _cull_cpu(geometry, cameras, options, torch_in)


def _cull_cpu(
    geometry: tuple[Any, ...], cameras: Cameras, options: _core.Options, torch_in: bool
) -> Visibility:
    ids, mask, counts, n_not_finite = _core.cull_cpu(
        *geometry, cameras.viewmats, cameras.Ks, cameras.sizes, options
    )
    if torch_in:
        import torch

        ids, counts = torch.from_numpy(ids), torch.from_numpy(counts)
        mask = torch.from_numpy(mask.view(np.int32))
    return Visibility(ids, mask, counts, n_not_finite)
