# SPDX-License-Identifier: Apache-2.0
"""Which memory an exception says has run out."""

from __future__ import annotations

from typing import Literal

import torch

_TORCH_ON_CPU = "can't allocate memory"  # its message; the type is RuntimeError


def memory_that_ran_out(error: BaseException) -> Literal["device", "host"] | None:
    """``device`` or ``host``; None for any other exception."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "device"
    is_torch = isinstance(error, RuntimeError) and _TORCH_ON_CPU in str(error)
    return "host" if is_torch or isinstance(error, MemoryError) else None


def in_short(error: BaseException) -> str:
    """The first line of what it says in brackets, behind a space; or nothing."""
    lines = str(error).splitlines()
    return f" ({lines[0]})" if lines else ""
