# SPDX-License-Identifier: Apache-2.0
"""Adam for 3D Gaussians on the host: only the rows with work to do."""

from gs_adam._core import CudaError, __version__, build_info

__all__ = ["CudaError", "__version__", "build_info"]
