# SPDX-License-Identifier: Apache-2.0
"""Renderers, and the choice of a renderer."""

from __future__ import annotations

import importlib.util
import re
import sys

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
    """The renderer called ``gsplat`` or ``cpu``; ``auto`` is gsplat where gsplat can run, else
    ``cpu`` with a line on stderr that names the missing part.

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
    if missing:
        print(f"rendering on the CPU, because the renderer gsplat needs {missing}", file=sys.stderr)
    from gs_train.renderers.cpu import CpuRenderer

    return CpuRenderer(options, absgrad=absgrad)


def _missing_for_gsplat() -> str | None:
    """What gsplat lacks here, with the remedy."""
    if torch.version.cuda is None:
        return (
            f"a CUDA device and a torch built for CUDA, got {torch.__version__} "
            "(pytorch.org/get-started has one)"
        )
    if not torch.cuda.is_available():
        return (
            "a CUDA device that torch can use (torch.cuda.is_available() is false; "
            "nvidia-smi says whether there is one, and whether its driver works)"
        )
    if importlib.util.find_spec("gsplat") is None:
        return "the package gsplat (pip install 'gs-train[gpu]')"
    remedy = "install nvcc to build them, or a gsplat wheel built for this torch"
    try:
        from gsplat import __version__ as version

        # 1.6 changes the arguments of functions that are called here.
        if not re.match(r"1\.5\.([3-9]|\d\d)", version):
            return f"gsplat 1.5.3 or a later 1.5, got {version} (pip install 'gsplat>=1.5.3,<1.6')"
        # Builds the kernels when the package came without them.
        from gsplat.cuda._backend import _C
    except Exception as error:
        reason = " ".join(str(error).split())
        return f"its CUDA kernels, which do not load here: {reason} ({remedy})"
    return f"its CUDA kernels ({remedy})" if _C is None else None
