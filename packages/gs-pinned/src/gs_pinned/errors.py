# SPDX-License-Identifier: Apache-2.0
"""Exceptions of this package beside the built-in ones."""

from gs_pinned._core import CudaError, StoreCorruptError, StoreReadOnlyError, StoreVersionError

__all__ = [
    "BufferedWarning",
    "ClosedError",
    "CudaError",
    "ForkedError",
    "PageableWarning",
    "PoisonedError",
    "SnapshotWarning",
    "StoreCorruptError",
    "StoreReadOnlyError",
    "StoreVersionError",
]


class BufferedWarning(UserWarning):
    """The file system has no direct transfers, so a store's records pass the page cache."""


class ClosedError(RuntimeError):
    """The object was closed and holds no memory any more."""


class ForkedError(RuntimeError):
    """Page-locked memory was used in a child process; only the parent process has the memory."""


class PageableWarning(UserWarning):
    """Page-locking was refused, so transfers take a slower way through a small locked buffer."""


class PoisonedError(RuntimeError):
    """The work behind a signal has failed; the message gives the reason."""


class SnapshotWarning(UserWarning):
    """A snapshot of a store is damaged; the store was opened at an older one."""
