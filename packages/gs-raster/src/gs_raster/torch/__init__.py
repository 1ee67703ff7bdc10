# SPDX-License-Identifier: Apache-2.0
"""Differentiable drawing with torch on a CUDA device."""

from gs_raster.torch.drop_in import rasterization
from gs_raster.torch.rasterize import Image, ProjectedSplats, project, rasterize

__all__ = ["Image", "ProjectedSplats", "project", "rasterization", "rasterize"]
