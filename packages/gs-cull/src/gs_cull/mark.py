# SPDX-License-Identifier: Apache-2.0
"""Which rows of an early list the views of a batch see now."""

from __future__ import annotations

from typing import Any

from gs_cull import _core
from gs_cull.arrays import Array, Geometry, is_torch, native
from gs_cull.cameras import Cameras
from gs_cull.options import CameraModelName
from gs_cull.request import check_request


def mark(
    means: Array,
    scales: Array,
    quats: Array,
    viewmats: Array,
    Ks: Array,
    width: Any,
    height: Any,
    ids: Array,
    mask: Array,
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
    out: Array | None = None,
) -> Array:
    """Mark the rows of an early list that some view sees now.

    A trainer lists the rows of a batch early, by a cull with ``inflate``, and moves the rows before
    the batch begins. The list is then a superset. ``mark`` decides for each listed row and view as
    :func:`gs_cull.cull` without ``inflate`` does, bit for bit: while no row has moved further than
    ``inflate`` allows, ``ids[mark(...)]`` equals ``cull(...).ids`` on the same arrays.

    Args:
        means, scales, quats, viewmats, Ks, width, height: as for :func:`gs_cull.cull`, the rows as
            they are now and the views of the list, in the same order.
        ids: (U,) int32, ``Visibility.ids`` of the list. Any order, sorted ids are fastest. Ids out
            of range are refused on the CPU; on CUDA they are trusted unless ``GS_CHECK_INDEX=1``.
        mask: (U, ceil(B / 32)) 32-bit words, ``Visibility.mask`` of the list: row ``ids[u]`` is
            looked at only in the views whose bits are set in ``mask[u]``.
        opacities, near, far, eps2d, radius_clip, camera_model, activated, antialiased, rects: as
            for :func:`gs_cull.cull`, and as they were for the list.
        out: (U,) bool to write to, contiguous; allocated when None.

    Returns:
        (U,) bool of the same kind and on the same device: ``out`` if given. True where at least one
        of the row's views sees the row.

    Raises:
        TypeError: a dtype differs, or numpy and torch are mixed.
        ValueError: as :func:`gs_cull.cull`; ``ids``, ``mask`` and ``out`` of different lengths, a
            mask of words for another number of views; on the CPU also a bit at or above B.
        IndexError: an id out of range, on the CPU.
        CudaError: CUDA tensors reached a build without CUDA, or the launch failed.

        With ``GS_CHECK_INDEX=1`` CUDA refuses all that the CPU refuses. Without it, because a check
        would wait for the device, a bit at or above B counts for nothing there, and a view whose
        pose is not finite or whose intrinsics are singular is not noticed: which rows such a view
        sees is undefined.

    Asynchrony: on CUDA one kernel on torch's current stream, one for each 128 views. Never
        synchronises unless ``GS_CHECK_INDEX=1``, needs no workspace, and may be captured into a
        graph. ``width``, ``height`` and ``rects`` are read before the call returns. On the CPU it
        returns when done.
    Cost: U * (61 bytes + a test in the first view that sees the row and in those before it). The
        GIL is released. Thread-safe.

    >>> import numpy as np
    >>> from gs_cull import Inflate, cull
    >>> means = np.array([[0, 0, 5], [0, 0, -0.1]], np.float32)
    >>> quats = np.array([[1, 0, 0, 0]] * 2, np.float32)
    >>> scales = np.full_like(means, -5)
    >>> K = np.array([[[100.0, 0, 50], [0, 100, 50], [0, 0, 1]]])
    >>> views = (np.eye(4)[None], K, 100, 100)
    >>> early = cull(means, scales, quats, *views, inflate=Inflate(means=0.2))
    >>> early.ids
    array([0, 1], dtype=int32)
    >>> mark(means, scales, quats, *views, early.ids, early.mask)
    array([ True, False])
    """
    geometry = (means, scales, quats, opacities)
    more = {} if out is None else {"out": out}
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
        ids=ids,
        mask=mask,
        **more,
    )
    return mark_checked(geometry, cameras, options, ids, mask, out)


def mark_checked(
    geometry: Geometry,
    cameras: Cameras,
    options: _core.Options,
    ids: Array,
    mask: Array,
    out: Array | None,
) -> Array:
    """As :func:`mark`, of arrays of one kind."""
    marks = native(geometry[0]).mark(geometry, cameras, options, ids, mask, out)
    if out is not None and is_torch(out) and not out.is_inference():
        import torch

        # A backward pass that needs what `out` held before then raises.
        torch.autograd.graph.increment_version(out)
    return marks
