# SPDX-License-Identifier: Apache-2.0
"""Rows between page-locked host memory and the GPU at the speed of the link, and tables on disk."""

from gs_pinned._core import __version__, available_bytes, build_info
from gs_pinned.block_cache import BlockCache, CacheStats, SnapshotTicket
from gs_pinned.block_store import BlockStore
from gs_pinned.errors import (
    BufferedWarning,
    ClosedError,
    CudaError,
    ForkedError,
    PageableWarning,
    PoisonedError,
    SnapshotWarning,
    StoreCorruptError,
    StoreReadOnlyError,
    StoreVersionError,
)
from gs_pinned.exchange import exchange
from gs_pinned.plane import Plane
from gs_pinned.ring import Ring, RingSlot, RingStats, store_compact
from gs_pinned.signal import Signal
from gs_pinned.store_results import BlockTicket, StoreCheck, StoreStats
from gs_pinned.table import Table, TableStats
from gs_pinned.transfer import gather, gather_retained, raise_faults, scatter, scatter_add

__all__ = [
    "BlockCache",
    "BlockStore",
    "BlockTicket",
    "BufferedWarning",
    "CacheStats",
    "ClosedError",
    "CudaError",
    "ForkedError",
    "PageableWarning",
    "Plane",
    "PoisonedError",
    "Ring",
    "RingSlot",
    "RingStats",
    "Signal",
    "SnapshotTicket",
    "SnapshotWarning",
    "StoreCheck",
    "StoreCorruptError",
    "StoreReadOnlyError",
    "StoreStats",
    "StoreVersionError",
    "Table",
    "TableStats",
    "__version__",
    "available_bytes",
    "build_info",
    "exchange",
    "gather",
    "gather_retained",
    "raise_faults",
    "scatter",
    "scatter_add",
    "store_compact",
]
