# SPDX-License-Identifier: Apache-2.0
"""Where a stage works: a CUDA device, and the stream that torch works on there now."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gs_raster import _core

HAS_CUDA = _core.build_info()["cuda_toolkit"] is not None


class Place(NamedTuple):
    """A device, its number, and torch's current stream on it: its handle, and torch's object."""

    device: torch.device
    number: int
    stream: int
    queue: torch.cuda.Stream

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor of any values on the device."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def workspace(self, n_bytes: int) -> Tensor:
        """Memory for a native function."""
        return torch.empty(max(n_bytes, 1), dtype=torch.uint8, device=self.device)


def place_of(name: str, tensor: Tensor) -> Place:
    """The place of a tensor.

    Args:
        name: of the argument, for errors.

    Raises:
        CudaError: this build of gs-raster has no CUDA.
        ValueError: the tensor is not on a CUDA device.
    """
    require_cuda()
    if not tensor.is_cuda:
        raise ValueError(
            f"{name} must be on a CUDA device, got {device_name(tensor.device)}; gs_raster.cpu "
            "renders there"
        )
    number = tensor.get_device()
    queue = torch.cuda.current_stream(number)
    return Place(tensor.device, number, queue.cuda_stream, queue)


def require_cuda() -> None:
    """Raise CudaError where this build of gs-raster has no CUDA."""
    if not HAS_CUDA:
        raise _core.CudaError(
            "this build of gs-raster has no CUDA. Reinstall it where nvcc is on the PATH; "
            "gs_raster.cpu renders without"
        )


def device_name(device: torch.device) -> str:
    """A device in the words of an error."""
    return "the CPU" if device.type == "cpu" else str(device)
