# SPDX-License-Identifier: Apache-2.0
"""Which CUDA device and which stream a call means."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from gs_pinned import _core
from gs_pinned.counts import whole_number

__all__ = ["current_device", "device_problem", "has_device", "stream_handle"]


_problem: str | None = None  # as found, once


def device_problem() -> str:
    """Why no CUDA device can be used here, else empty.

    Built without CUDA, no driver, no device, or this process was forked from one that uses CUDA,
    which CUDA does not follow.
    """
    global _problem
    if _problem is None:
        _problem = _core.device_problem()
    return _problem


def _note_fork() -> None:
    global _problem
    if _problem == "":
        _problem = "this process was forked from one that uses CUDA; start it with the spawn method"


os.register_at_fork(after_in_child=_note_fork)


def has_device() -> bool:
    """Whether this build and this machine can run CUDA transfers."""
    return not device_problem()


def current_device() -> int:
    """torch's current device when torch has been imported and uses CUDA, else 0."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.current_device())
    return 0


def stream_handle(stream: Any, *, device: int) -> int:
    """The integer handle of a stream.

    Args:
        stream: an integer, a ``torch.cuda.Stream``, any object with ``__cuda_stream__``, or None
            for torch's current stream on ``device``.
        device: the CUDA device that the work runs on.

    Raises:
        TypeError: anything else, or None where torch has not been imported.
    """
    if stream is None:
        torch = sys.modules.get("torch")
        if torch is None:
            raise TypeError("stream must be given where torch is not imported, got None")
        return int(torch.cuda.current_stream(device).cuda_stream)
    if isinstance(stream, int | np.integer):
        return whole_number(stream, "stream", most=(1 << 64) - 1)
    if hasattr(stream, "cuda_stream"):
        return int(stream.cuda_stream)
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        _, handle = protocol() if callable(protocol) else protocol
        return int(handle)
    raise TypeError(
        "stream must be an integer handle, a torch.cuda.Stream or an object with __cuda_stream__, "
        f"got {type(stream).__name__}"
    )
