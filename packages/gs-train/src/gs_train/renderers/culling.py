# SPDX-License-Identifier: Apache-2.0
"""Culling with a renderer's rules: the rows that `gs_cull` finds are those that it would draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

import gs_cull
from gs_train.renderers.protocol import Renderer, Rows, View

Cameras = tuple[Tensor, Tensor, np.ndarray | int, np.ndarray | int]
"""World to camera (B, 4, 4), K (B, 3, 3), widths and heights (B,); of one view numbers."""


def cameras_of(views: Sequence[View]) -> Cameras:
    """The cameras of views, on their device. Of one view its own matrices, not copies."""
    if len(views) == 1:
        (view,) = views
        return view.viewmat[None], view.K[None], view.width, view.height
    return (
        torch.stack([view.viewmat for view in views]),
        torch.stack([view.K for view in views]),
        np.array([view.width for view in views]),
        np.array([view.height for view in views]),
    )


def cull(
    geometry: Rows,
    cameras: Cameras,
    renderer: Renderer,
    *,
    rects: np.ndarray | None = None,
    inflate: gs_cull.Inflate | None = None,
) -> gs_cull.Visibility:
    """What each camera sees: :func:`gs_cull.cull`, whose ``rects`` and ``inflate`` these are.

    Args:
        geometry: means, scales, quats and opacities on the cameras' device.
        renderer: whose rules hold.
    """
    return gs_cull.cull(
        *_arrays(geometry),
        *cameras,
        opacities=geometry["opacities"].detach(),
        rects=rects,
        inflate=inflate,
        **renderer.options._asdict(),
    )


def visible_ids(geometry: Rows, view: View, renderer: Renderer) -> Tensor:
    """Sorted ids of the rows that ``renderer`` would draw in ``view``.

    Returns:
        (R,) int64, which torch indexes with, on the geometry's device. Synchronises once.
    """
    return cull(geometry, cameras_of([view]), renderer).ids.long()


def mark(geometry: Rows, cameras: Cameras, ids: Tensor, mask: Tensor, renderer: Renderer) -> Tensor:
    """(U,) bool: which of the listed rows their cameras see now, see :func:`gs_cull.mark`.

    Cost: one kernel over the list. Does not synchronise.
    """
    return gs_cull.mark(
        *_arrays(geometry),
        *cameras,
        ids,
        mask,
        opacities=geometry["opacities"].detach(),
        **renderer.options._asdict(),
    )


def balanced_split(
    geometry: Rows, view: View, renderer: Renderer, *, n: int, axis: Literal["x", "y"], halo: int
) -> gs_cull.Split:
    """A view in ``n`` parts of about as many rows each, see :func:`gs_cull.balanced_split`."""
    return gs_cull.balanced_split(
        *_arrays(geometry),
        view.viewmat,
        view.K,
        view.width,
        view.height,
        opacities=geometry["opacities"].detach(),
        n=n,
        axis=axis,
        halo=halo,
        **renderer.options._asdict(),
    )


def _arrays(geometry: Rows) -> tuple[Tensor, Tensor, Tensor]:
    means, scales, quats = (geometry[name].detach() for name in ("means", "scales", "quats"))
    return means, scales, quats
