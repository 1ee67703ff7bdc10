# SPDX-License-Identifier: Apache-2.0
"""Small arrays between host and device, without waits."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy of an array on a device, by way of page-locked memory; on the CPU its own memory.

    Asynchrony: enqueued on torch's current stream; waits for nothing.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cpu" or not tensor.numel():
        return tensor.to(device)
    staged = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    staged.numpy()[...] = array  # `Tensor.pin_memory` asks CUDA about the memory first
    return staged.to(device, non_blocking=True)


class HostCopy:
    """A copy of a tensor on the host, which may not be there yet.

    Args:
        tensor: on any device; on the CPU it is not copied.

    Asynchrony: enqueued on torch's current stream; `numpy` waits.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._copied: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(tensor.device))

    def numpy(self) -> NDArray[Any]:
        """The values."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        values: NDArray[Any] = self._tensor.numpy()
        return values
