# SPDX-License-Identifier: Apache-2.0
"""Draws rows of 3D Gaussians into a view, and gradients back."""

from gs_raster._core import CudaError, __version__, build_info

__all__ = ["CudaError", "__version__", "build_info"]
