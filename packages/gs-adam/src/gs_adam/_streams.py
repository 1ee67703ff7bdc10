# SPDX-License-Identifier: Apache-2.0
"""Torch's current stream on a device, as the native part takes it."""

from __future__ import annotations

from collections.abc import Callable

import torch


def _public_current_handle(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream


# The handle without torch's object around it, where this torch has that: making the object takes as
# long as a launch, and a step asks three times.
current_handle: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _public_current_handle
)
