# SPDX-License-Identifier: Apache-2.0
"""Which 3D Gaussians each view sees, before rendering."""

from gs_cull._core import CudaError, __version__, build_info

__all__ = ["CudaError", "__version__", "build_info"]
