# SPDX-License-Identifier: Apache-2.0
"""Draws rows of 3D Gaussians into a view, and gradients back.

The stages work on CUDA tensors of torch: :func:`project`, :func:`sort`, :func:`blend`, and back
:func:`blend_backward`, :func:`project_backward`. :func:`draw` and :func:`draw_backward` are all of
them in one call each, without a wait of the host. :func:`project_views` writes splats that travel
to another device, which draws them with :func:`draw_splats`. ``gs_raster.torch`` has the stages as
differentiable functions, ``gs_raster.cpu`` draws on the CPU. :func:`photometric_loss` compares an
image with a photograph; :func:`perturb` moves rows by the noise of Markov chain Monte Carlo.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gs_raster._core import CudaError, __version__, build_info
from gs_raster.types import MAX_INSTANCES, Options, Rect, TooManyInstancesError

if TYPE_CHECKING:
    from gs_raster.cuda.blending import Pixels, blend, blend_backward
    from gs_raster.cuda.check_cache import CheckCache
    from gs_raster.cuda.drawing import Drawing, draw, draw_backward
    from gs_raster.cuda.loss import photometric_loss
    from gs_raster.cuda.noise import perturb
    from gs_raster.cuda.planning import drawing_bytes, workspace_bytes
    from gs_raster.cuda.projection import project, project_backward
    from gs_raster.cuda.room_check import RoomCheck
    from gs_raster.cuda.rows import RowGradients, Rows
    from gs_raster.cuda.sorting import TileLists, sort
    from gs_raster.cuda.splat_drawing import SplatDrawing, draw_splats, draw_splats_backward
    from gs_raster.cuda.splats import Splats
    from gs_raster.cuda.statistics import Statistics
    from gs_raster.cuda.view_splats import (
        ProjectedViews,
        ViewRows,
        project_views,
        project_views_backward,
    )
    from gs_raster.cuda.views import View
    from gs_raster.cuda.workspace import Workspace

__all__ = [
    "MAX_INSTANCES",
    "CheckCache",
    "CudaError",
    "Drawing",
    "Options",
    "Pixels",
    "ProjectedViews",
    "Rect",
    "RoomCheck",
    "RowGradients",
    "Rows",
    "SplatDrawing",
    "Splats",
    "Statistics",
    "TileLists",
    "TooManyInstancesError",
    "View",
    "ViewRows",
    "Workspace",
    "__version__",
    "blend",
    "blend_backward",
    "build_info",
    "draw",
    "draw_backward",
    "draw_splats",
    "draw_splats_backward",
    "drawing_bytes",
    "perturb",
    "photometric_loss",
    "project",
    "project_backward",
    "project_views",
    "project_views_backward",
    "sort",
    "workspace_bytes",
]

# Imported when asked for: they bring in torch, which takes seconds.
_LATER = {
    "CheckCache": "cuda.check_cache",
    "Drawing": "cuda.drawing",
    "Pixels": "cuda.blending",
    "ProjectedViews": "cuda.view_splats",
    "RoomCheck": "cuda.room_check",
    "RowGradients": "cuda.rows",
    "Rows": "cuda.rows",
    "SplatDrawing": "cuda.splat_drawing",
    "Splats": "cuda.splats",
    "Statistics": "cuda.statistics",
    "TileLists": "cuda.sorting",
    "View": "cuda.views",
    "ViewRows": "cuda.view_splats",
    "Workspace": "cuda.workspace",
    "blend": "cuda.blending",
    "blend_backward": "cuda.blending",
    "draw": "cuda.drawing",
    "draw_backward": "cuda.drawing",
    "draw_splats": "cuda.splat_drawing",
    "draw_splats_backward": "cuda.splat_drawing",
    "drawing_bytes": "cuda.planning",
    "perturb": "cuda.noise",
    "photometric_loss": "cuda.loss",
    "project": "cuda.projection",
    "project_backward": "cuda.projection",
    "project_views": "cuda.view_splats",
    "project_views_backward": "cuda.view_splats",
    "sort": "cuda.sorting",
    "workspace_bytes": "cuda.planning",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module 'gs_raster' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"gs_raster.{_LATER[name]}"), name)
        globals()[name] = value
        return value
