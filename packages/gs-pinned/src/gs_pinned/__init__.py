# SPDX-License-Identifier: Apache-2.0
"""Rows between page-locked host memory and the GPU at the speed of the link."""

from gs_pinned._core import __version__, build_info
from gs_pinned.errors import ClosedError, CudaError, ForkedError, PageableWarning
from gs_pinned.table import Table, TableStats

__all__ = [
    "ClosedError",
    "CudaError",
    "ForkedError",
    "PageableWarning",
    "Table",
    "TableStats",
    "__version__",
    "build_info",
]
