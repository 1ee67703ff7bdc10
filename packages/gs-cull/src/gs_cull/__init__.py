# SPDX-License-Identifier: Apache-2.0
"""Which 3D Gaussians each view sees, before rendering."""

from gs_cull._core import CudaError, __version__, build_info
from gs_cull.cull import cull
from gs_cull.options import Inflate
from gs_cull.visibility import Visibility

__all__ = ["CudaError", "Inflate", "Visibility", "__version__", "build_info", "cull"]
