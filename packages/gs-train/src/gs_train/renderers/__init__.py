# SPDX-License-Identifier: Apache-2.0
"""Renderers, and the choice between them."""

from __future__ import annotations

import importlib.util

import torch

from gs_train.errors import InputError
from gs_train.renderers.protocol import (
    Rect,
    Renderer,
    RenderOptions,
    Rows,
    Splats,
    TooManyIntersectionsError,
    View,
)

__all__ = [
    "Rect",
    "RenderOptions",
    "Renderer",
    "Rows",
    "Splats",
    "TooManyIntersectionsError",
    "View",
    "make_renderer",
]


def make_renderer(name: str, options: RenderOptions, *, absgrad: bool = False) -> Renderer:
    """The renderer called ``gsplat`` or ``cpu``; ``auto`` is gsplat where it can run.

    Args:
        name: ``auto``, ``gsplat`` or ``cpu``.
        options: how rows are projected.
        absgrad: fill ``Splats.absgrad`` in the backward pass.

    Raises:
        InputError: gsplat was asked for and the GPU or the package is missing.
    """
    missing = None if name == "cpu" else _missing_for_gsplat()
    if name == "gsplat" and missing:
        raise InputError(f"--renderer gsplat needs {missing}; --renderer cpu runs without")
    if name != "cpu" and not missing:
        from gs_train.renderers.gsplat import GsplatRenderer

        return GsplatRenderer(
            options, device=f"cuda:{torch.cuda.current_device()}", absgrad=absgrad
        )
    from gs_train.renderers.cpu import CpuRenderer

    return CpuRenderer(options, absgrad=absgrad)


def _missing_for_gsplat() -> str | None:
    if not torch.cuda.is_available():
        return "a CUDA device that torch can use (torch.cuda.is_available() is false)"
    if importlib.util.find_spec("gsplat") is None:
        return 'the package gsplat (pip install "gs-train[gpu]")'
    try:
        # Builds the kernels when the package came without them.
        from gsplat.cuda._backend import _C
    except Exception as error:
        return f"gsplat's CUDA kernels, which do not load here: {' '.join(str(error).split())}"
    if _C is None:
        return "gsplat's CUDA kernels: nvcc to build them, or a gsplat wheel built for this torch"
    return None
