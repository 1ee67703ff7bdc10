# SPDX-License-Identifier: Apache-2.0
"""Renderers, and the choice of a renderer."""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import cast

import torch

import gs_raster
from gs_train.errors import InputError
from gs_train.renderers.protocol import (
    DepthMeaning,
    DepthRenderer,
    InverseDepth,
    MetricDepth,
    Rect,
    Renderer,
    RenderOptions,
    Rows,
    Splats,
    TooManyIntersectionsError,
    View,
)

__all__ = [
    "DepthMeaning",
    "DepthRenderer",
    "InverseDepth",
    "MetricDepth",
    "Rect",
    "RenderOptions",
    "Renderer",
    "Rows",
    "Splats",
    "TooManyIntersectionsError",
    "View",
    "make_renderer",
    "with_depths",
]


def with_depths(renderer: Renderer) -> DepthRenderer:
    """The renderer, where it can sum depths.

    Raises:
        InputError: it is a caller's own and cannot.
    """
    if not hasattr(renderer, "rasterize_with_depth"):
        raise InputError(
            "--depth-weight needs a renderer with rasterize_with_depth, got "
            f"{type(renderer).__name__} without; see gs_train.renderers.DepthRenderer"
        )
    return cast(DepthRenderer, renderer)


def make_renderer(name: str, options: RenderOptions, *, absgrad: bool = False) -> Renderer:
    """The renderer called ``raster``, ``gsplat`` or ``cpu``.

    ``auto`` is ``raster`` where gs-raster can draw on a CUDA device, else ``gsplat`` where gsplat
    can, else ``cpu``. Where it is not ``raster``, a line on stderr names the missing part.

    Args:
        name: ``auto``, ``raster``, ``gsplat`` or ``cpu``.
        options: how rows are projected.
        absgrad: fill ``Splats.absgrad`` in the backward pass.

    Raises:
        InputError: ``raster`` or ``gsplat`` was asked for and a part is missing.
    """
    if name == "auto":
        name = _best_renderer()
    elif name in _MISSING:
        missing = _MISSING[name]()
        if missing:
            raise InputError(f"--renderer {name} needs {missing}; --renderer cpu runs without")
    if name == "cpu":
        from gs_train.renderers.cpu import CpuRenderer

        return CpuRenderer(options, absgrad=absgrad)
    device = f"cuda:{torch.cuda.current_device()}"
    if name == "raster":
        from gs_train.renderers.raster import RasterRenderer

        return RasterRenderer(options, device=device, absgrad=absgrad)
    from gs_train.renderers.gsplat import GsplatRenderer

    return GsplatRenderer(options, device=device, absgrad=absgrad)


def _best_renderer() -> str:
    """What runs here; of what does not, the reason goes to stderr."""
    missing = _missing_for_raster()
    if missing is None:
        return "raster"
    missing_for_gsplat = _missing_for_gsplat()
    reason = f"because the renderer raster needs {missing}"
    if missing_for_gsplat is None:
        print(f"rendering with gsplat, {reason}", file=sys.stderr)
        return "gsplat"
    if missing_for_gsplat != missing:
        reason += f", and gsplat needs {missing_for_gsplat}"
    print(f"rendering on the CPU, {reason}", file=sys.stderr)
    return "cpu"


def _missing_for_raster() -> str | None:
    """What gs-raster lacks here, with the remedy."""
    missing = _missing_for_cuda()
    if missing is None and gs_raster.build_info()["cuda_toolkit"] is None:
        return "a build of gs-raster with CUDA (reinstall it where nvcc is on the PATH)"
    return missing


def _missing_for_cuda() -> str | None:
    """What lacks for any CUDA device, with the remedy."""
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
    return None


def _missing_for_gsplat() -> str | None:
    """What gsplat lacks here, with the remedy."""
    missing = _missing_for_cuda()
    if missing is not None:
        return missing
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


_MISSING = {"raster": _missing_for_raster, "gsplat": _missing_for_gsplat}
