# SPDX-License-Identifier: Apache-2.0
"""Rows between page-locked host memory and the GPU at the speed of the link."""

from gs_pinned._core import CudaError, __version__, build_info

__all__ = ["CudaError", "__version__", "build_info"]
