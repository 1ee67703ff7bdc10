# SPDX-License-Identifier: Apache-2.0
"""The five stages on numpy arrays, compiled by numba on first use, some 10 s.

These functions define what the kernels of other devices compute. numba keeps compiled functions on
disk: beside these files, else in the user's cache folder, else where ``NUMBA_CACHE_DIR`` says.
Importing this package imports numba (``pip install gs-raster[cpu]``).
"""

from gs_raster.cpu.stages import blend, blend_backward, project, project_backward, sort
from gs_raster.cpu.tiles import TileLists
from gs_raster.cpu.types import Blended, Camera, Rows, SplatGradients, Splats

__all__ = [
    "Blended",
    "Camera",
    "Rows",
    "SplatGradients",
    "Splats",
    "TileLists",
    "blend",
    "blend_backward",
    "project",
    "project_backward",
    "sort",
]
