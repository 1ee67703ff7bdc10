# SPDX-License-Identifier: Apache-2.0
"""What this package raises beside the built-in exceptions."""

from gs_pinned._core import CudaError

__all__ = ["ClosedError", "CudaError", "ForkedError", "PageableWarning", "PoisonedError"]


class ClosedError(RuntimeError):
    """The object was closed and holds no memory any more."""


class ForkedError(RuntimeError):
    """Page-locked memory was used in a child process; it exists only where it was made."""


class PageableWarning(UserWarning):
    """Page-locking was refused, so transfers take a slower way through a small locked buffer."""


class PoisonedError(RuntimeError):
    """What a signal stands for has failed; the message says why."""
