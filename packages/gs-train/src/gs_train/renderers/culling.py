# SPDX-License-Identifier: Apache-2.0
"""Culling with a renderer's rules: the rows that `gs_cull` finds are those that it would draw."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from torch import Tensor

import gs_cull
from gs_train.renderers.protocol import Renderer, RenderOptions, Rows, View

Cameras: TypeAlias = gs_cull.Views
"""Of some views, on their device."""


def cameras_of(views: Sequence[View]) -> Cameras:
    """The cameras of one view or more. Of one view its own matrices, not copies.

    Cost: on CUDA one kernel for two views or more. Does not synchronise.
    """
    if len(views) == 1:
        return views[0].camera
    return Cameras.joined([view.camera for view in views])


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
    looking = cameras if rects is None else cameras.cropped(rects)
    return looking.cull(
        *_arrays(geometry),
        opacities=geometry["opacities"],
        rules=_rules(renderer.options),
        inflate=inflate,
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
    return cameras.mark(
        *_arrays(geometry),
        ids,
        mask,
        opacities=geometry["opacities"],
        rules=_rules(renderer.options),
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
        opacities=geometry["opacities"],
        n=n,
        axis=axis,
        halo=halo,
        **renderer.options._asdict(),
    )


@functools.lru_cache(maxsize=16)
def _rules(options: RenderOptions) -> gs_cull.Rules:
    return gs_cull.Rules(**options._asdict())


def _arrays(geometry: Rows) -> tuple[Tensor, Tensor, Tensor]:
    return geometry["means"], geometry["scales"], geometry["quats"]
