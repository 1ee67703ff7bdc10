# SPDX-License-Identifier: Apache-2.0
"""Draws rows of 3D Gaussians into a view, and gradients back.

``gs_raster.cpu`` holds the stages for the CPU; importing that package imports numba.
"""

from gs_raster._core import CudaError, __version__, build_info
from gs_raster.types import MAX_INSTANCES, Options, Rect, TooManyInstancesError

__all__ = [
    "MAX_INSTANCES",
    "CudaError",
    "Options",
    "Rect",
    "TooManyInstancesError",
    "__version__",
    "build_info",
]
